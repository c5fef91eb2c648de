//! The bank without native procedures: an account is a number, and a transfer is a script, as it has to decide.

use anyhow::bail;
use ordain_model::{Args, ProcedureId};
use ordain_resp::client::Commands;
use ordain_workload::bank::{BALANCES, OPEN, TRANSFER, key};
use ordain_workload::{Param, Workload};

use super::script::Script;
use super::{Form, audit, split_packed};
use crate::resp::link::Link;

/// A transfer in Lua: the accounts to take from and to give to, and the amount.
const MOVE: &str = "if tonumber(redis.call('GET', KEYS[1])) < tonumber(ARGV[1]) then
  return redis.error_reply('NOFUNDS not enough in the account')
end
local left = redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('INCRBY', KEYS[2], ARGV[1])
return left";
/// The sum of some accounts, in Lua.
const SUM: &str = "local sum = 0
for _, key in ipairs(KEYS) do sum = sum + redis.call('GET', key) end
return sum";

/// The form of the bank.
#[derive(Debug)]
pub struct Bank {
    transfer: Script,
    balances: Script,
    accounts: u64,
}

impl Bank {
    /// As scripts.
    ///
    /// # Errors
    /// A transaction that no script with declared keys can do, or the server does not take the scripts.
    pub fn prepare(workload: &dyn Workload, link: &mut Link) -> anyhow::Result<Bank> {
        if audit::param(workload, "totals") != Some(Param::Real(0.0)) {
            bail!("a script cannot read all accounts at once: leave --totals at 0, or choose --form native");
        }
        Ok(Bank {
            transfer: Script::load(link, MOVE)?,
            balances: Script::load(link, SUM)?,
            accounts: audit::count(workload, "accounts")?,
        })
    }
}

impl Form for Bank {
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        if procedure == BALANCES {
            let out = self.balances.call(out, args.len(), 0);
            args.iter().for_each(|key| _ = out.word(key.bytes));
            return Ok(());
        }
        let (keys, amount) = split_packed(args)?;
        match procedure {
            OPEN => {
                out.begin(1 + 2 * keys.len()).word("MSET");
                keys.for_each(|key| _ = out.word(key).word(amount));
            }
            TRANSFER => {
                let out = self.transfer.call(out, keys.len(), 1);
                keys.for_each(|key| _ = out.word(key));
                out.word(amount);
            }
            _ => bail!("the bank has no script for procedure {procedure}"),
        }
        Ok(())
    }

    fn loads(&self, procedure: ProcedureId) -> bool {
        procedure == OPEN
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        audit::counters(link, self.accounts, key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{transcript, with_args};
    use super::*;

    #[test]
    fn each_procedure_is_a_script() {
        let bank = Bank { transfer: Script::kept("abc"), balances: Script::kept("def"), accounts: 9 };
        let args = with_args(&[&key(1)[..], &key(2), b"30"]);
        assert_eq!(transcript(&bank, OPEN, &args), "MSET b1 30 b2 30\n");
        assert_eq!(transcript(&bank, TRANSFER, &args), "EVALSHA abc 2 b1 b2 30\n");
        let args = with_args(&[&key(1)[..], &key(2)]);
        assert_eq!(transcript(&bank, BALANCES, &args), "EVALSHA def 2 b1 b2\n");
    }
}
