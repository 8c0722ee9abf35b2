"""What a machine with a GPU is asked to do, in one command."""
