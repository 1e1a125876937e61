"""The methods that the coordinator serves: sessions to runners, reads and watches to api."""
