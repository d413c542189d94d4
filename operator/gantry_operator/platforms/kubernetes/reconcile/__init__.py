"""One cluster's controller: a pass over its objects, what it observes, and the platform of its control."""
