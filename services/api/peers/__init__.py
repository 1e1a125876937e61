"""What api calls on dispatchers and coordinators: the replicas of each, and the streams and calls to them."""
