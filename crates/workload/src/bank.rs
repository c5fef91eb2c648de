//! Bank: money moves between accounts, and none is made or lost.
//!
//! A transfer aborts when the funds are missing, and then no part of it may show: the simplest workload whose
//! transactions have a verdict that all participants must hear.

use std::sync::Arc;

use ordain_model::procedure::Target;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Datum, Db, FragmentContext, PlanError, Planner, Position, Procedure,
    ProcedureId, Registry, ReplyContext, Writer, system,
};

use crate::choice::Choice;
use crate::random::Random;
use crate::{Made, Source};

/// Opens accounts. Arguments: the balance of each, 8 bytes, then keys.
pub const OPEN: ProcedureId = ProcedureId(1010);
/// Moves money. Arguments: the amount, 8 bytes, the account to take it from, the account to give it to. Answers
/// what is left in the first, or aborts with an error that begins with `NOFUNDS`.
pub const TRANSFER: ProcedureId = ProcedureId(1011);
/// Answers what all accounts hold together. No arguments.
pub const TOTAL: ProcedureId = ProcedureId(1012);

/// Where the accounts are.
pub const DB: Db = Db(0);

const DAMAGED: PlanError = PlanError::fixed("ERR damaged arguments of a bank procedure");

pub(crate) fn register(registry: &mut Registry) {
    registry.register(OPEN, "bank.open", Arc::new(Open));
    registry.register(TRANSFER, "bank.transfer", Arc::new(Transfer));
    registry.register(TOTAL, "bank.total", Arc::new(Total));
}

/// The key of an account: longer than that of a YCSB record, so that the two never meet.
pub const fn key(account: u64) -> [u8; 9] {
    let n = account.to_le_bytes();
    [b'b', n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]]
}

fn is_account(key: &[u8]) -> bool {
    key.len() == 9 && key[0] == b'b'
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// The balance in a record; an account that is not open holds nothing.
fn balance(cx: &FragmentContext<'_>) -> u64 {
    cx.cell().string().and_then(number).unwrap_or(0)
}

fn amount(cx: &FragmentContext<'_>) -> u64 {
    cx.args.get(0).and_then(number).unwrap_or(0)
}

struct Open;

impl Procedure for Open {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        items.next().and_then(|balance| number(balance.bytes)).ok_or(DAMAGED)?;
        for key in items {
            if !is_account(key.bytes) {
                return Err(DAMAGED);
            }
            planner.key_in(DB, 0, Access::Write, key)?;
            planner.silent();
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let balance = amount(cx).to_le_bytes();
        cx.cell_mut().put_string(&balance);
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct Transfer;

impl Transfer {
    const TAKE: u16 = 0;
    const GIVE: u16 = 1;
}

impl Procedure for Transfer {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        let amount = items.next().and_then(|amount| number(amount.bytes));
        let (Some(_), Some(from), Some(to), None) = (amount, items.next(), items.next(), items.next()) else {
            return Err(DAMAGED);
        };
        if !is_account(from.bytes) || !is_account(to.bytes) {
            return Err(DAMAGED);
        }
        planner.key_in(DB, Transfer::TAKE, Access::Write, from)?;
        planner.abortable();
        planner.key_in(DB, Transfer::GIVE, Access::Write, to)?;
        planner.abortable();
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let (held, amount) = (balance(cx), amount(cx));
        let now = if code == Transfer::TAKE { held.checked_sub(amount) } else { held.checked_add(amount) };
        let Some(now) = now else {
            let text = if code == Transfer::TAKE {
                "NOFUNDS not enough in the account"
            } else {
                "ERR balance overflows"
            };
            cx.writer().error(text);
            return Err(Abort::Logic);
        };
        cx.cell_mut().put_string(&now.to_le_bytes());
        cx.writer().int(now as i64);
        Ok(())
    }
}

struct Total;

impl Procedure for Total {
    fn plan(&self, _args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.table(0, Access::TableRead).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let mut total = 0u64;
        if let Target::Table(table) = &cx.target {
            table.scan(DB, Position::default(), &mut |_, key, cell| {
                if is_account(key) {
                    total = total.wrapping_add(cell.string().and_then(number).unwrap_or(0));
                }
                true
            });
        }
        cx.writer().int(total as i64);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).int(system::sum_parts(cx.slot(0)));
    }
}

/// One population of clients of several that share the bank.
#[derive(Clone, Debug)]
pub struct Bank {
    choice: Choice,
    balance: u64,
    amount_max: u64,
    random: Random,
    to_open: std::ops::Range<u64>,
    /// The transaction made up last: the number in front, and its accounts.
    number: u64,
    accounts: Vec<u64>,
}

impl Bank {
    /// How many accounts a transaction of loading opens.
    const OPEN_BATCH: usize = 64;

    /// Population `number` of `populations`; each account is opened with `balance`, each transfer moves 1 to
    /// `amount_max` between two accounts of the choice.
    pub fn new(
        choice: Choice,
        balance: u64,
        amount_max: u64,
        seed: u64,
        number: usize,
        populations: usize,
    ) -> Bank {
        let accounts = choice.records();
        let edge = |n: usize| (u128::from(accounts) * n as u128 / populations.max(1) as u128) as u64;
        Bank {
            random: Random::stream(seed, number as u64),
            to_open: edge(number)..edge(number + 1),
            number: 0,
            accounts: Vec::new(),
            choice,
            balance,
            amount_max,
        }
    }
}

impl Source for Bank {
    fn load(&mut self) -> Option<ProcedureId> {
        self.number = self.balance;
        self.accounts.clear();
        self.accounts.extend(self.to_open.by_ref().take(Bank::OPEN_BATCH));
        (!self.accounts.is_empty()).then_some(OPEN)
    }

    fn next(&mut self) -> Made {
        self.number = 1 + self.random.below(self.amount_max);
        self.choice.draw_distinct(&mut self.random, 2, &mut self.accounts);
        // A bank of one account moves its money to itself.
        let last = self.accounts.last().copied().unwrap_or(0);
        self.accounts.resize(2, last);
        Made { procedure: TRANSFER, kind: 0 }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        args.push(&self.number.to_le_bytes());
        self.accounts.iter().for_each(|account| _ = args.push(&key(*account)));
    }
}

/// Reads the reply of [`TOTAL`]; `None` if it is none.
pub fn read_total(reply: &[u8]) -> Option<u64> {
    Datum::first(reply).as_int().map(|total| total as u64)
}

#[cfg(test)]
mod tests {
    use ordain_model::{
        Call, Chunk, ChunkNo, Epoch, GatewayId, Gsn, Millis, OutcomeStatus, PartitionId, ReferenceExecutor,
    };

    use super::*;
    use crate::choice::Distribution;

    #[test]
    fn transfers_keep_the_total_and_some_of_them_abort() {
        for accounts in [1, 20] {
            let mut registry = Registry::default();
            crate::register(&mut registry);
            let registry = Arc::new(registry);
            let mut executor = ReferenceExecutor::new(registry.clone());
            let choice = Choice::new(accounts, Distribution::Zipfian { theta: 0.5 }).unwrap();
            let mut bank = Bank::new(choice, 100, 80, 9, 0, 1);
            let mut index = 0;
            let mut run = |procedure, bank: Option<&Bank>| {
                let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
                let write =
                    |args: &mut ArgsBuilder<'_>| bank.into_iter().for_each(|bank| bank.write_args(args));
                let txn = chunk.push(&registry, Call::new(procedure, DB), write).unwrap().clone();
                index += 1;
                executor.run_txn(Gsn::new(Epoch(1), PartitionId(0), index), Millis(1), &chunk, &txn)
            };
            while let Some(procedure) = bank.load() {
                run(procedure, Some(&bank));
            }
            let (mut committed, mut aborted) = (0, 0);
            for _ in 0..500 {
                let Made { procedure, .. } = bank.next();
                match run(procedure, Some(&bank)).status {
                    OutcomeStatus::Committed => committed += 1,
                    OutcomeStatus::Aborted(Abort::Logic) => aborted += 1,
                    other => panic!("{other:?}"),
                }
                assert_eq!(read_total(&run(TOTAL, None).reply), Some(100 * accounts));
            }
            assert!(committed > 100 && (aborted > 50 || accounts == 1), "{committed} {aborted}");
        }
    }
}
