//! FCALL of the procedures themselves, on Ordain.

use std::collections::BTreeMap;

use anyhow::Context;
use ordain_model::{Args, ProcedureId, Registry, system};
use ordain_resp::client::Commands;
use ordain_workload::bank::BALANCES;
use ordain_workload::tpcc::order_status::ORDER_STATUS;

use super::Form;
use crate::resp::link::{Link, no_error};

/// The names of the procedures of all workloads.
#[derive(Debug)]
pub struct Native {
    names: BTreeMap<ProcedureId, &'static str>,
}

impl Native {
    /// Knows all workloads.
    pub fn new() -> Native {
        let mut registry = Registry::default();
        ordain_workload::register(&mut registry);
        Native { names: registry.names().map(|(name, id)| (id, name)).collect() }
    }

    fn name(&self, procedure: ProcedureId) -> anyhow::Result<&'static str> {
        self.names.get(&procedure).copied().with_context(|| format!("there is no procedure {procedure}"))
    }
}

impl Form for Native {
    /// The keys come first among the arguments, and then one that holds the rest, if there is any.
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        let keys = match procedure {
            ORDER_STATUS | BALANCES => args.len(),
            _ => args.len().saturating_sub(1),
        };
        out.begin(3 + args.len()).word("FCALL").word(self.name(procedure)?).number(keys as i64).args(args);
        Ok(())
    }

    fn audit(&self, audits: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut answers = Vec::new();
        for audit in audits {
            let answer = match *audit {
                system::DIGEST => link.ask(&["DEBUG", "DIGEST"])?,
                audit => link.ask(&["FCALL", self.name(audit)?, "0"])?,
            };
            no_error(&answer).context("the audit was refused")?;
            answers.push(answer);
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::args;

    use super::*;

    #[test]
    fn keys_are_counted_and_what_is_packed_is_not() {
        let native = Native::new();
        let mut out = Commands::default();
        let encoded = args::encode(&["a", "b", "packed"]);
        native.write(ordain_workload::bank::TRANSFER, Args::parse(&encoded).unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out.bytes.clone()).unwrap();
        let words: Vec<&str> = text.split("\r\n").filter(|part| !part.starts_with(['*', '$'])).collect();
        assert_eq!(words, ["FCALL", "bank.transfer", "2", "a", "b", "packed", ""]);
        assert_eq!(out.count, 1);
        assert!(native.write(ProcedureId(9), Args::parse(&encoded).unwrap(), &mut out).is_err());
    }
}
