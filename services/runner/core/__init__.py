"""The pure rules of a runner, such as the class of a failure and how much work to ask for ahead."""
