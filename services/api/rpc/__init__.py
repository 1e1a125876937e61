"""The servicers of api, and the translation between protobuf and the values of app/."""
