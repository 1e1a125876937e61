"""What a runner calls on others: its sessions with coordinators, and their messages as jobs and outcomes."""
