"""Money and limits: tenants, keys, quotas, holds, the ledger, prices, reports. No HTTP."""
