"""The four services and the chassis that they stand on; they know each other only through protos/."""
