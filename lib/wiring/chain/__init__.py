"""The chain: the notebooks in order under papermill, resumed where nothing changed.

`wiring.chain.workbook.run_workbook` runs the five notebooks of the workbook, `wiring.chain.run.run_chain` any.
"""
