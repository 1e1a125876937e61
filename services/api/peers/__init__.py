"""The calls and streams from api to the replicas of the dispatcher and of the coordinator."""
