"""Plotly figures of the claims, ipywidgets panels, and their export to files.

Names are loaded on first use, so that importing the package imports neither plotly nor torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "analysis_panels": ["calculator_panel", "evidence_panel", "explorer_panel"],
        "breakdown_figure": ["round_cost", "speedup_breakdown"],
        "claim_figures": [
            "acceptance",
            "accuracy_by_depth",
            "arms_table",
            "layouts",
            "ranking",
            "similarity_map",
            "speedups",
            "throughput",
        ],
        "evidence_board": ["evidence_table", "fault_ranking", "verdict_table"],
        "layout_explorer": ["LayoutExplorer", "accuracy_by_layout"],
        "patch_session": ["PatchSession"],
        "picker": ["open_index"],
        "server_session": ["ServerSession"],
        "session_panels": ["patch_panel", "server_panel"],
        "speculation_calculator": [
            "break_even_by_steps",
            "case_study",
            "from_arm",
            "outcome_text",
            "tok_per_s_by_steps",
        ],
    },
)
