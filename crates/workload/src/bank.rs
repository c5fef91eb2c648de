//! Bank: money moves between accounts, and none is made or lost.
//!
//! A transfer aborts when the funds are missing, and then no part of it may show: the simplest workload whose
//! transactions have a verdict that all participants must know. Beside the transfers, balances of some
//! accounts and the total of all are read; a total that is ever another than at the beginning proves that a
//! transaction saw a part of another.
//!
//! The procedures take words that people can type, and an account holds a text that GET shows: `b17` is an account, `30` an
//! amount.

use std::sync::Arc;

use ordain_model::key::MAX_KEYS;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Cell, Datum, Db, FragmentContext, OutcomeStatus, PlanError, Planner,
    Procedure, ProcedureId, Registry, ReplyContext, Writer,
};

use crate::aggregate::{Aggregate, sums, word};
use crate::audit::{self, Audited, Numbers};
use crate::choice::{Distribution, MAX_RECORDS};
use crate::parameters::{ParameterError, parameters, require, require_in};
use crate::pool::{Partition, Pool};
use crate::population::Population;
use crate::reads::answer_sum;
use crate::words::{Word, number_of};
use crate::{Counts, Finding, Made, Param, Results, Source, Workload};

/// Opens accounts. Arguments: accounts, then the balance of each.
pub const OPEN: ProcedureId = ProcedureId(1010);
/// Moves money. Arguments: the account to take it from, the account to give it to, the amount.
/// Answers what is left in the first, or aborts with an error that begins with `NOFUNDS`.
pub const TRANSFER: ProcedureId = ProcedureId(1011);
/// Answers [`Numbers`]: what all accounts hold together. No arguments.
pub const TOTAL: ProcedureId = ProcedureId(1012);
/// Answers what some accounts hold together. Arguments: accounts.
pub const BALANCES: ProcedureId = ProcedureId(1013);

/// The database of the accounts.
pub const DB: Db = Db(0);

const OPEN_TAKES: PlanError = PlanError::fixed(
    "ERR bank.open takes accounts and the balance of each, as in FCALL bank.open 2 b1 b2 100",
);
const TRANSFER_TAKES: PlanError = PlanError::fixed(
    "ERR bank.transfer takes the account to take from, the account to give to and an amount, as in FCALL bank.transfer \
     2 b1 b2 30",
);
const BALANCES_TAKES: PlanError =
    PlanError::fixed("ERR bank.balances takes accounts, as in FCALL_RO bank.balances 2 b1 b2");

pub(crate) fn register(registry: &mut Registry) {
    registry.register_native(OPEN, "bank.open", Arc::new(Open));
    registry.register_native(TRANSFER, "bank.transfer", Arc::new(Transfer));
    registry.register_native(TOTAL, "bank.total", audit::procedure(|table| audit::fold(table, DB, see)));
    registry.register_native(BALANCES, "bank.balances", Arc::new(Balances));
}

/// The key of an account: `b` and its number.
pub const fn key(account: u64) -> Word {
    Word::named(b'b', account)
}

fn is_account(key: &[u8]) -> bool {
    key.split_first().is_some_and(|(letter, digits)| *letter == b'b' && number_of(digits).is_some())
}

fn check_account(key: &[u8]) -> Result<(), PlanError> {
    match is_account(key) {
        true => Ok(()),
        false => Err(PlanError::quoting("ERR an account is b and a number, as b17, not '", key, "'")),
    }
}

fn check_amount(word: &[u8]) -> Result<(), PlanError> {
    match number_of(word) {
        Some(_) => Ok(()),
        None => Err(PlanError::quoting(
            "ERR an amount is a number from 0 to 9223372036854775807 in decimal digits, not '",
            word,
            "'",
        )),
    }
}

/// The number in the word at this place; it was checked as the call was planned.
fn amount(args: Args<'_>, place: usize) -> u64 {
    args.get(place).and_then(number_of).unwrap_or(0)
}

/// The balance in a record; an account that is not open holds nothing.
fn balance(cx: &FragmentContext<'_>) -> u64 {
    cx.cell().string().and_then(number_of).unwrap_or(0)
}

/// Adds a record to the audit: its balance, if it is an account.
fn see(numbers: &mut Numbers, key: &[u8], cell: &Cell) {
    numbers.add(cell.string().filter(|_| is_account(key)).and_then(number_of));
}

struct Open;

impl Procedure for Open {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let accounts = args.len().checked_sub(1).filter(|accounts| *accounts > 0).ok_or(OPEN_TAKES)?;
        let mut words = args.iter();
        for key in words.by_ref().take(accounts) {
            check_account(key.bytes)?;
            planner.key_in(DB, 0, Access::Write, key)?;
            planner.silent();
            planner.blind();
        }
        check_amount(words.bytes())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let balance = Word::number(amount(cx.args, cx.args.len().saturating_sub(1)));
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
        let mut words = args.iter();
        let (Some(from), Some(to), Some(amount), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(TRANSFER_TAKES);
        };
        check_account(from.bytes)?;
        check_account(to.bytes)?;
        check_amount(amount.bytes)?;
        planner.key_in(DB, Transfer::TAKE, Access::Write, from)?;
        planner.abortable();
        planner.key_in(DB, Transfer::GIVE, Access::Write, to)?;
        planner.abortable();
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let (held, amount) = (balance(cx), amount(cx.args, 2));
        let now = if code == Transfer::TAKE { held.checked_sub(amount) } else { held.checked_add(amount) };
        let now = now.filter(|now| i64::try_from(*now).is_ok());
        let Some(now) = now else {
            let text = if code == Transfer::TAKE {
                "NOFUNDS not enough in the account"
            } else {
                "ERR balance overflows"
            };
            cx.writer().error(text);
            return Err(Abort::Logic);
        };
        cx.cell_mut().put_string(&Word::number(now));
        cx.writer().int(now as i64);
        Ok(())
    }
}

struct Balances;

impl Procedure for Balances {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        if args.is_empty() {
            return Err(BALANCES_TAKES);
        }
        args.iter().try_for_each(|key| {
            check_account(key.bytes)?;
            planner.key_in(DB, 0, Access::Read, key).map(drop)
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match cx.cell().string().and_then(number_of) {
            Some(held) => cx.writer().int(held as i64),
            None => cx.writer().nil(),
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        answer_sum(cx, 0..cx.count, out);
    }
}

parameters! {
    /// The bank, and its transactions.
    pub struct Parameters {
        /// The number of accounts.
        pub accounts: u64 = 100_000,
        /// The balance of each at first.
        pub balance: u64 = 1_000,
        /// The most that a transfer moves; the least is 1.
        pub amount_max: u64 = 100,
        /// The choice of accounts.
        pub distribution: Distribution = Distribution::UNIFORM,
        /// The share of transactions that read the balances of some accounts.
        pub balances: f64 = 0.1,
        /// The number of accounts that they read.
        pub accounts_per_read: usize = 10,
        /// The share of transactions that read the total of all accounts.
        pub totals: f64 = 0.0,
    }
}

/// The workload.
#[derive(Clone, Debug)]
pub struct Bank {
    parameters: Parameters,
    pool: Pool,
}

impl Bank {
    /// The bank with these parameters.
    ///
    /// # Errors
    /// A parameter that makes no sense, by name.
    pub fn new(parameters: Parameters) -> Result<Bank, ParameterError> {
        let Parameters { accounts, balance, amount_max, distribution, balances, totals, .. } = parameters;
        require_in("accounts", accounts, 2..=MAX_RECORDS)?;
        let total = u128::from(accounts) * u128::from(balance);
        require(i64::try_from(total).is_ok(), || {
            format!(
                "balance {balance} in each of {accounts} accounts is more together than a 64-bit integer holds"
            )
        })?;
        require((1..=total).contains(&amount_max.into()), || {
            format!("amount_max must be 1 to {total}, what all accounts hold, not {amount_max}")
        })?;
        require(balances >= 0.0 && totals >= 0.0 && balances + totals <= 1.0, || {
            format!(
                "balances and totals must be shares from 0 to 1, 1 together at most, not {balances} and {totals}"
            )
        })?;
        let per_read = parameters.accounts_per_read as u64;
        require_in("accounts_per_read", per_read, 1..=accounts.min(MAX_KEYS as u64))?;
        Ok(Bank { pool: Pool::whole(&Partition::all(accounts), distribution)?, parameters })
    }

    fn total(&self) -> u64 {
        self.parameters.accounts * self.parameters.balance
    }
}

const TRANSFERS: u8 = 0;
const BALANCE_READS: u8 = 1;
const TOTAL_READS: u8 = 2;

impl Workload for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn kinds(&self) -> &'static [&'static str] {
        &["transfer", "balances", "total"]
    }

    fn params(&self) -> Vec<(&'static str, Param)> {
        let p = &self.parameters;
        let mut params = vec![
            ("accounts", Param::Int(p.accounts)),
            ("balance", Param::Int(p.balance)),
            ("amount_max", Param::Int(p.amount_max)),
        ];
        params.extend(p.distribution.params());
        params.extend([
            ("balances", Param::Real(p.balances)),
            ("accounts_per_read", Param::Int(p.accounts_per_read as u64)),
            ("totals", Param::Real(p.totals)),
        ]);
        params
    }

    fn accesses(&self) -> Vec<f64> {
        vec![2.0, self.parameters.accounts_per_read as f64, self.parameters.accounts as f64]
    }

    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source> {
        Box::new(Customers {
            bank: self.clone(),
            population: Population::new(seed, number, populations, self.parameters.accounts),
            made: OPEN,
            number: 0,
            summary: Summary::default(),
        })
    }

    fn audit(&self) -> ProcedureId {
        TOTAL
    }

    fn check(&self, results: &Results) -> Vec<Finding> {
        audit::check(results, |numbers: Numbers, digest| {
            let (total, sum) = (self.total(), numbers.sum);
            let (Summary { counts, example }, _) = results.merged();
            let Sums { reads: counted, torn, odd } = counts;
            let mut reads = results.of_kind(BALANCE_READS);
            reads += results.of_kind(TOTAL_READS);
            let Counts { committed, aborted, .. } = reads;
            vec![
                Finding::new("total", sum == total, || {
                    format!("the accounts hold {sum} in the end, and {total} in the beginning")
                }),
                Finding::new("isolation", torn == 0 && counted == committed, || {
                    format!(
                        "{torn} of {committed} reads ({counted} counted by clients) saw what cannot be: {example} of {total}"
                    )
                }),
                Finding::new("aborts", odd == 0 && aborted == 0, || {
                    format!(
                        "{odd} transfers aborted for another reason than NOFUNDS, and {aborted} reads aborted"
                    )
                }),
                numbers.finding(self.parameters.accounts),
                digest,
            ]
        })
    }
}

sums! {
    /// The answers of a population that bear on the money.
    struct Sums {
        /// The reads that were answered.
        reads: u64,
        /// The reads among them with a sum that no state between two transactions has.
        torn: u64,
        /// The transfers that aborted for another reason than missing funds.
        odd: u64,
    }
}

/// The counts of a population, and one of the sums that no state has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    counts: Sums,
    example: u64,
}

impl Summary {
    fn count(&mut self, sum: u64, is_possible: bool) {
        self.counts.reads += 1;
        if !is_possible {
            self.counts.torn += 1;
            self.example = sum;
        }
    }
}

impl Aggregate for Summary {
    fn merge(&mut self, other: Summary) {
        if other.counts.torn > 0 {
            self.example = other.example;
        }
        self.counts.merge(other.counts);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.counts.encode(out);
        out.extend_from_slice(&self.example.to_le_bytes());
    }

    fn decode_front(bytes: &mut &[u8]) -> Option<Summary> {
        Some(Summary { counts: Sums::decode_front(bytes)?, example: word(bytes)? })
    }
}

/// One population of the bank's customers.
#[derive(Clone, Debug)]
struct Customers {
    bank: Bank,
    population: Population,
    /// The procedure of the transaction made up last, and the number behind its accounts.
    made: ProcedureId,
    number: u64,
    summary: Summary,
}

impl Source for Customers {
    fn load(&mut self) -> Option<ProcedureId> {
        self.made = OPEN;
        self.number = self.bank.parameters.balance;
        self.population.load(Population::LOAD_BATCH).then_some(OPEN)
    }

    fn next(&mut self) -> Made {
        let Parameters { balances, totals, accounts_per_read, amount_max, .. } = self.bank.parameters;
        let Population { random, drawn, .. } = &mut self.population;
        let draw = if balances + totals > 0.0 { random.unit() } else { 1.0 };
        let (procedure, kind, accounts) = if draw < totals {
            (TOTAL, TOTAL_READS, 0)
        } else if draw < totals + balances {
            (BALANCES, BALANCE_READS, accounts_per_read)
        } else {
            self.number = 1 + random.below(amount_max);
            (TRANSFER, TRANSFERS, 2)
        };
        self.made = procedure;
        drawn.begin(accounts);
        (0..accounts).for_each(|_| self.bank.pool.draw(random, drawn));
        Made { procedure, kind }
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        self.population.write_keys(key, args);
        if !matches!(self.made, TOTAL | BALANCES) {
            args.push(&Word::number(self.number));
        }
    }

    fn answered(&mut self, kind: u8, status: OutcomeStatus, reply: &[u8]) {
        let total = self.bank.total();
        match (kind, status) {
            (TRANSFERS, OutcomeStatus::Aborted(Abort::Logic)) => {
                let lacks_funds =
                    matches!(Datum::first(reply), Datum::Error(text) if text.starts_with(b"NOFUNDS"));
                self.summary.counts.odd += u64::from(!lacks_funds);
            }
            (BALANCE_READS, OutcomeStatus::Committed) => {
                // An answer that is no number is a sum that cannot be.
                let sum = Datum::first(reply).as_int().map_or(u64::MAX, |sum| sum as u64);
                let reads_all =
                    self.bank.parameters.accounts_per_read as u64 == self.bank.parameters.accounts;
                self.summary.count(sum, if reads_all { sum == total } else { sum <= total });
            }
            (TOTAL_READS, OutcomeStatus::Committed) => {
                let sum = Audited::<Numbers>::read(reply).map_or(u64::MAX, |audited| audited.found.sum);
                self.summary.count(sum, sum == total);
            }
            _ => {}
        }
    }

    fn summary(&mut self) -> Vec<u8> {
        self.summary.encoded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bed, load_again, run, wrong};

    fn parameters(accounts: u64) -> Parameters {
        Parameters {
            accounts,
            balance: 100,
            amount_max: 80,
            distribution: Distribution::Zipfian { theta: 0.5 },
            balances: 0.2,
            accounts_per_read: 2,
            totals: 0.1,
        }
    }

    #[test]
    fn transfers_keep_the_total_and_some_of_them_abort() {
        for accounts in [2, 20] {
            let bank = Bank::new(parameters(accounts)).unwrap();
            let (_, results) = run(&bank, 2, 1_000);
            assert_eq!(wrong(&bank.check(&results)), [""; 0]);
            let names: Vec<_> = bank.check(&results).iter().map(|finding| finding.name).collect();
            assert_eq!(names, ["total", "isolation", "aborts", "records", "digest"]);
            let [transfers, balances, totals] = results.by_kind[..] else { panic!("three kinds") };
            assert!(transfers.committed > 300 && transfers.aborted > 100, "{transfers:?}");
            assert!((140..260).contains(&balances.committed) && (60..140).contains(&totals.committed));
        }
    }

    #[test]
    fn opening_accounts_writes_over_what_there_is() {
        load_again(&Bank::new(parameters(20)).unwrap());
    }

    #[test]
    fn lost_money_and_a_torn_read_are_found() {
        let bank = Bank::new(parameters(20)).unwrap();
        let (mut bed, mut results) = run(&bank, 2, 100);
        let mut customers = bank.source(1, 0, 1);
        let mut reply = Vec::new();
        Writer(&mut reply).int(2_001);
        customers.answered(BALANCE_READS, OutcomeStatus::Committed, &reply);
        results.summaries.push(customers.summary());
        results.by_kind[1].committed += 1;
        assert_eq!(wrong(&bank.check(&results)), ["isolation"]);
        results.summaries.pop();
        // No population counted the read.
        assert_eq!(wrong(&bank.check(&results)), ["isolation"]);
        results.by_kind[1].committed -= 1;
        assert_eq!(wrong(&bank.check(&results)), [""; 0]);
        let total = results.audits[0].clone();
        let mut others = Bank::new(Parameters { accounts: 21, ..parameters(21) }).unwrap().source(1, 0, 1);
        others.answered(TOTAL_READS, OutcomeStatus::Committed, &total);
        assert_eq!(Summary::decode(&others.summary()).unwrap().counts.torn, 1);
        customers.answered(TRANSFERS, OutcomeStatus::Aborted(Abort::Logic), &reply);
        results.summaries.push(customers.summary());
        results.by_kind[1].committed += 1;
        assert_eq!(wrong(&bank.check(&results)), ["isolation", "aborts"]);
        bed.run(OPEN, |args| _ = args.push(&key(3)).push(b"5000"));
        results.audits = bank.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
        assert_eq!(wrong(&bank.check(&results)), ["total", "isolation", "aborts"]);
    }

    #[test]
    fn an_aborted_transfer_leaves_no_trace() {
        let mut bed = Bed::new();
        bed.run(OPEN, |args| _ = args.push(&key(1)).push(&key(2)).push(b"10"));
        let digest = bed.executor.digest();
        let transfer = |from, to, amount: u64| {
            move |args: &mut ArgsBuilder<'_>| {
                args.push(&key(from)).push(&key(to)).push(&Word::number(amount));
            }
        };
        let result = bed.call(TRANSFER, transfer(1, 2, 11));
        assert_eq!(result.status, OutcomeStatus::Aborted(Abort::Logic));
        assert!(matches!(Datum::first(&result.reply), Datum::Error(text) if text.starts_with(b"NOFUNDS")));
        assert_eq!(bed.executor.digest(), digest);
        assert_eq!(Datum::first(&bed.run(TRANSFER, transfer(1, 2, 4))), Datum::Int(6));
        let balances = |args: &mut ArgsBuilder<'_>| _ = args.push(&key(2));
        assert_eq!(Datum::first(&bed.run(BALANCES, balances)), Datum::Int(14));
        let missing = bed.run(BALANCES, |args| _ = args.push(&key(2)).push(&key(3)));
        assert!(matches!(Datum::first(&missing), Datum::Error(_)));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let good = parameters(10);
        let refused = |parameters: Parameters| Bank::new(parameters).unwrap_err().to_string();
        for (parameters, name) in [
            (Parameters { accounts: 1, ..good.clone() }, "accounts"),
            (Parameters { balance: u64::MAX / 4, ..good.clone() }, "balance"),
            (Parameters { amount_max: 0, ..good.clone() }, "amount_max"),
            (Parameters { amount_max: 1_001, ..good.clone() }, "amount_max"),
            (Parameters { balances: 0.6, totals: 0.6, ..good.clone() }, "balances and totals"),
            (Parameters { balances: -0.1, ..good.clone() }, "balances and totals"),
            (Parameters { totals: f64::NAN, ..good.clone() }, "balances and totals"),
            (Parameters { accounts_per_read: 11, ..good.clone() }, "accounts_per_read"),
            (Parameters { distribution: Distribution::Zipfian { theta: -1.0 }, ..good.clone() }, "theta"),
        ] {
            assert!(refused(parameters).contains(name), "{name}");
        }
    }

    #[test]
    fn wrong_words_are_refused_with_what_they_should_be() {
        let bed = Bed::new();
        for (procedure, words, text) in [
            (TRANSFER, &["b1", "5"][..], "bank.transfer takes the account to take from"),
            (TRANSFER, &["b1", "b2", "b3", "5"], "bank.transfer takes the account to take from"),
            (TRANSFER, &["b1", "c2", "5"], "an account is b and a number, as b17, not 'c2'"),
            (TRANSFER, &["1", "b2", "5"], "an account is b and a number, as b17, not '1'"),
            (TRANSFER, &["b01", "b2", "5"], "an account is b and a number, as b17, not 'b01'"),
            (TRANSFER, &["b1", "b2", "-5"], "an amount is a number from 0 to 9223372036854775807"),
            (TRANSFER, &["b1", "b2", "1.5"], "in decimal digits, not '1.5'"),
            (OPEN, &["100"], "bank.open takes accounts and the balance of each"),
            (OPEN, &["b1", "b2"], "in decimal digits, not 'b2'"),
            (OPEN, &["x", "5"], "an account is b and a number, as b17, not 'x'"),
            (BALANCES, &["b1", ""], "an account is b and a number, as b17, not ''"),
            (BALANCES, &[], "bank.balances takes accounts"),
        ] {
            let refusal = bed.refusal(procedure, words).unwrap();
            assert!(refusal.starts_with("ERR ") && refusal.contains(text), "{words:?}: {refusal}");
        }
    }

    #[test]
    fn an_account_holds_a_text() {
        let mut bed = Bed::new();
        bed.run(OPEN, |args| _ = args.push(b"b1").push(b"b2").push(b"9223372036854775807"));
        let overflow = bed.call(TRANSFER, |args| _ = args.push(b"b1").push(b"b2").push(b"1"));
        assert_eq!(Datum::first(&overflow.reply), Datum::Error(b"ERR balance overflows"));
        let moved = bed.run(TRANSFER, |args| _ = args.push(b"b1").push(b"b3").push(b"7"));
        assert_eq!(Datum::first(&moved), Datum::Int(i64::MAX - 7));
        let held =
            bed.executor.records().find(|(_, key, _)| *key == b"b3").and_then(|(.., cell)| cell.string());
        assert_eq!(held, Some(&b"7"[..]));
    }
}
