"""The steps of a migration from Apache RocketMQ. `cutover_steps` and `rollback_steps` are pure, `cutover_edge` and
`rollback_edge` act.
"""
