"""What runs, when: plans, the run table, the scheduler, the engine."""
