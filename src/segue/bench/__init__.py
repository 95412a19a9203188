"""What segue is measured against: the ways in which people save a training today. The only place that may use them."""
