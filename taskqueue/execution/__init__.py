"""How one job is found, checked, run and hooked, in whichever process."""
