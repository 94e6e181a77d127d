"""One run: its validated parameters, its folder, its artefacts."""
