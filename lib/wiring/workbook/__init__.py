"""Profiles, cases, artefacts and claims; what the notebooks measure and compute; the run of all notebooks, the report.

Names are loaded on first use, so that importing the package does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "artefacts": [
            "Accuracy",
            "CureRow",
            "LayoutDiff",
            "LayoutSearch",
            "Patch",
            "PhaseLayout",
            "Rebenchmark",
            "Throughput",
        ],
        "captured_accuracy": ["accuracy_on_captured", "compare_with_reference", "phase_differences"],
        "case": ["open_case"],
        "case_index": ["profile_table"],
        "case_search": ["search_data", "with_shuffled_fc", "with_swapped_slots"],
        "evaluate": ["evaluate_draft", "load_reference", "open_draft", "pool", "replay_texts"],
        "fixes": ["applied", "digests", "plan_for", "preview"],
        "gather_evidence": ["evidence_as_served", "evidence_of_cured"],
        "live": ["AS_SERVED", "CURED", "PLAIN", "draft_arm", "machine_of", "measure_arms", "plain_arm"],
        "progress": ["say"],
        "rebenchmark": ["measure_cured", "measure_round_costs", "round_costs"],
        "speed_limit": ["case_limit", "draft_share"],
        "verdicts": ["verdict_claims"],
    },
)
