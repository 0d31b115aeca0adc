"""`adaptive`: the policy, and the forecast that it averages from experts and filters."""
