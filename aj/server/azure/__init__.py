"""Azure as the daemon sees it: one caller's login, Azure Resource Manager, and Blob."""
