"""What the coordinator serves: sessions of runners, reads and watches of api."""
