"""Demo tasks, the loader of users' task files, and the plain PyTorch loop to compare with."""
