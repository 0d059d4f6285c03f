"""What a network costs: parameters and multiply-accumulates."""
