"""What the coordinator says over the wire: sessions on both sides, reads and watches for api, questions to api."""
