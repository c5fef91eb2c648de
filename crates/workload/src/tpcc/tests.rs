//! The workload as a whole, on the reference executor: transactions in flight together, so that reconnaissances go
//! stale; every finding and what it takes to bring it about; loading; the statistics of what is drawn.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::args::encode;
use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Call, Chunk, ChunkNo, Datum, Digest, Epoch, FragmentContext, GatewayId,
    Gsn, Known, Millis, OutcomeStatus, PartitionId, PlanError, Planner, Procedure, ProcedureId,
    Reconnaissance, ReferenceExecutor, Registry, Value, reference, system,
};

use super::delivery::{self, DELIVERY, DeliveryCall};
use super::load::LOADED_MS;
use super::new_order::{Line, NEW_ORDER, NewOrderCall, UNUSED_ITEM};
use super::order_status::{ORDER_STATUS, OrderStatusCall};
use super::payment::{PAYMENT, PaymentCall, Who};
use super::schema::{
    Covered, Customer, DB, District, History, Key, Named, Order, OrderLine, Prefix, Row, Stock, Warehouse,
};
use super::source::{Clients, Transaction};
use super::stock_level::{self, STOCK_LEVEL, StockLevelCall};
use super::*;
use crate::random::Random;
use crate::{Counts, Made};

/// A database of few rows, so that transactions meet.
const SMALL: Scale = Scale { districts: 3, customers: 24, items: 40, orders: 20, undelivered: 6 };

fn parameters(warehouses: u32) -> Parameters {
    Parameters { warehouses, scale: SMALL, ..Parameters::default() }
}

/// Writes over a record, or over one below it: how tests do damage.
struct Poke;

const POKE: ProcedureId = ProcedureId(1069);

impl Procedure for Poke {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        planner.key_in(DB, 0, Access::Write, args.iter().next().ok_or(DAMAGED)?)?;
        planner.covering();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let args = cx.args;
        let (suffix, row) = (args.get(1).unwrap_or_default(), args.get(2));
        let value = || row.map(|row| Value::String(row.to_vec()));
        if !suffix.is_empty() {
            cx.below().edit(suffix, &mut |cell| match value() {
                Some(value) => cell.put(value),
                None => cell.delete(),
            });
        } else if let Some(value) = value() {
            cx.cell_mut().put(value);
        } else {
            cx.cell_mut().delete();
        }
        Ok(())
    }
}

/// A state, and what becomes of transactions on it.
struct Bed {
    workload: Tpcc,
    registry: Arc<Registry>,
    executor: ReferenceExecutor,
    epoch: u64,
    by_kind: Vec<Counts>,
    /// How often transactions were started over, by procedure.
    restarts: BTreeMap<ProcedureId, u32>,
}

/// A transaction on its way.
struct Flight {
    population: usize,
    made: Made,
    args: Vec<u8>,
    known: Known,
    /// What it waits for, and is done by its next step.
    step: Reconnaissance,
}

impl Bed {
    fn new(parameters: Parameters, register: fn(&mut Registry)) -> Bed {
        let mut registry = Registry::default();
        system::register(&mut registry);
        register(&mut registry);
        registry.register(POKE, "test.poke", Arc::new(Poke));
        let registry = Arc::new(registry);
        Bed {
            workload: Tpcc::new(parameters).unwrap(),
            executor: ReferenceExecutor::new(registry.clone()),
            registry,
            epoch: 0,
            by_kind: vec![Counts::default(); 5],
            restarts: BTreeMap::new(),
        }
    }

    fn loaded(parameters: Parameters) -> Bed {
        let mut bed = Bed::new(parameters, super::register);
        bed.load(7, 1);
        bed
    }

    /// Loads with several populations, each in its turn.
    fn load(&mut self, seed: u64, populations: usize) {
        let mut sources: Vec<_> =
            (0..populations).map(|n| self.workload.source(seed, n, populations)).collect();
        let mut loading = true;
        while loading {
            loading = false;
            for source in &mut sources {
                if let Some(procedure) = source.load() {
                    let result = self.run(procedure, &args_of(|args| source.write_args(args)));
                    assert_eq!(result.status, OutcomeStatus::Committed);
                    loading = true;
                }
            }
        }
    }

    /// Runs a transaction whose keys are known.
    fn run(&mut self, procedure: ProcedureId, args: &[u8]) -> reference::Result {
        self.try_run(procedure, args).unwrap()
    }

    fn try_run(&mut self, procedure: ProcedureId, args: &[u8]) -> Result<reference::Result, PlanError> {
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let args = Args::parse(args).unwrap();
        let write = |out: &mut ArgsBuilder<'_>| args.iter().for_each(|arg| _ = out.push(arg.bytes));
        let txn = chunk.push(&self.registry, Call::new(procedure, DB), write)?.clone();
        let only_reads = [ORDER_STATUS, STOCK_LEVEL, delivery::PEEK, stock_level::PEEK, audit::AUDIT];
        assert_eq!(
            txn.read_only,
            only_reads.contains(&procedure) || [system::READ, system::DIGEST].contains(&procedure)
        );
        self.epoch += 1;
        let gsn = Gsn::new(Epoch(self.epoch), PartitionId(0), 0);
        Ok(self.executor.run_txn(gsn, Millis(LOADED_MS + self.epoch), &chunk, &txn))
    }

    /// What is to be done next for a transaction with these arguments.
    fn plan(&self, procedure: ProcedureId, args: &[u8], known: &Known) -> Result<Reconnaissance, PlanError> {
        let code = self.registry.get(procedure).unwrap();
        let args = Args::parse(args).unwrap();
        if code.is_dependent() {
            code.reconnoitre(args, known)
        } else {
            Ok(Reconnaissance::Ready(args.encoded().to_vec()))
        }
    }

    /// Takes a transaction a step further, as a gateway does; the result when it has ended.
    fn step(&mut self, flight: &mut Flight) -> Option<reference::Result> {
        self.try_step(flight).unwrap()
    }

    fn try_step(&mut self, flight: &mut Flight) -> Result<Option<reference::Result>, PlanError> {
        match &flight.step {
            Reconnaissance::Read(keys) => {
                let reads = || keys.iter().map(|(db, key)| (*db, &**key));
                let result = self.run(system::READ, &args_of(|args| system::read_args(reads(), args)));
                let read = system::read_reply(reads(), &result.reply).unwrap();
                read.into_iter().for_each(|evidence| flight.known.learn(evidence));
            }
            Reconnaissance::Ask(procedure, args) => {
                let answer = self.try_run(*procedure, args)?;
                flight.known.answers.push(answer.reply);
            }
            Reconnaissance::Ready(args) => {
                let result = self.try_run(flight.made.procedure, args)?;
                if result.status != OutcomeStatus::Aborted(Abort::Restart) {
                    return Ok(Some(result));
                }
                *self.restarts.entry(flight.made.procedure).or_default() += 1;
                match Datum::first(&result.reply) {
                    Datum::Bulk(_) => flight.known.answers = vec![result.reply],
                    _ => {
                        let fresh = system::restart_evidence(&result.reply).unwrap();
                        fresh.into_iter().for_each(|evidence| flight.known.learn(evidence));
                    }
                }
            }
        }
        flight.step = self.plan(flight.made.procedure, &flight.args, &flight.known)?;
        Ok(None)
    }

    fn take_off(&self, population: usize, made: Made, args: Vec<u8>) -> Flight {
        let step = self.plan(made.procedure, &args, &Known::default()).unwrap();
        Flight { population, made, args, known: Known::default(), step }
    }

    /// Runs one transaction to its end, alone.
    fn call(&mut self, transaction: &Transaction) -> reference::Result {
        let procedure = match transaction {
            Transaction::NewOrder(_) => NEW_ORDER,
            Transaction::Payment(_) => PAYMENT,
            Transaction::OrderStatus(_) => ORDER_STATUS,
            Transaction::Delivery(_) => DELIVERY,
            Transaction::StockLevel(_) => STOCK_LEVEL,
        };
        let args = args_of(|args| transaction.write_args(&self.workload.prefixes, args));
        let mut flight = self.take_off(0, Made { procedure, kind: 0 }, args);
        loop {
            if let Some(result) = self.step(&mut flight) {
                return result;
            }
        }
    }

    /// Runs transactions of several populations, `in_flight` of them together, and says what was found.
    fn drive(&mut self, seed: u64, txns: usize, in_flight: usize) -> Vec<Finding> {
        const POPULATIONS: usize = 3;
        let mut random = Random::new(seed);
        let mut sources: Vec<_> =
            (0..POPULATIONS).map(|n| self.workload.source(seed, n, POPULATIONS)).collect();
        let mut flying: Vec<Flight> = Vec::new();
        for n in 0.. {
            if n < txns {
                let population = n % POPULATIONS;
                let made = sources[population].next();
                let args = args_of(|args| sources[population].write_args(args));
                flying.push(self.take_off(population, made, args));
            }
            while flying.len() >= in_flight || (n >= txns && !flying.is_empty()) {
                let at = random.below(flying.len() as u64) as usize;
                if let Some(result) = self.step(&mut flying[at]) {
                    let Flight { population, made, .. } = flying.swap_remove(at);
                    self.by_kind[usize::from(made.kind)].count(result.status);
                    sources[population].heard(made.kind, result.status, &result.reply);
                }
            }
            if n >= txns {
                break;
            }
        }
        let testimonies = sources.iter_mut().map(|source| source.testimony()).collect();
        self.findings(testimonies)
    }

    fn findings(&mut self, testimonies: Vec<Vec<u8>>) -> Vec<Finding> {
        let none = encode::<&str>(&[]);
        let audits = self.workload.audits();
        let audits = audits.into_iter().map(|audit| self.run(audit, &none).reply).collect();
        self.workload.check(&Seen { by_kind: self.by_kind.clone(), audits, testimonies })
    }

    fn key(&self, warehouse: u32, row: Row<'_>) -> Key {
        self.workload.prefixes[warehouse as usize - 1].key(row)
    }

    /// The bytes of a row, or of one that it covers.
    fn row(&self, warehouse: u32, row: Row<'_>, covered: Option<Covered>) -> Option<Vec<u8>> {
        let key = self.key(warehouse, row);
        let name = match covered {
            None => key.to_vec(),
            Some(covered) => ordain_model::cover::covered_key(&key, &covered.suffix()).to_vec(),
        };
        let db = if covered.is_some() { DB.below() } else { DB };
        let found = self.executor.records().find(|(of, key, _)| *of == db && *key == name);
        found.and_then(|(_, _, cell)| cell.string().map(<[u8]>::to_vec))
    }

    fn poke(&mut self, warehouse: u32, row: Row<'_>, covered: Option<Covered>, bytes: Option<&[u8]>) {
        let key = self.key(warehouse, row);
        let suffix = covered.map(|covered| covered.suffix().to_vec()).unwrap_or_default();
        let args: Vec<&[u8]> = [&*key, &suffix].into_iter().chain(bytes).collect();
        self.run(POKE, &encode(&args));
    }
}

fn args_of(write: impl FnOnce(&mut ArgsBuilder<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut ArgsBuilder::new(&mut bytes));
    bytes
}

fn wrong(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.wrong.is_some()).map(|finding| finding.name).collect()
}

fn assert_sound(findings: &[Finding]) {
    for finding in findings {
        assert_eq!(finding.wrong, None, "{}", finding.name);
    }
}

#[test]
fn the_full_mix_in_flight_together_keeps_every_condition() {
    for (warehouses, partitions, remote) in
        [(1, 1, Remote::Standard), (3, 2, Remote::Share(0.5)), (2, 1, Remote::Standard)]
    {
        let mut bed = Bed::loaded(Parameters { partitions, remote, ..parameters(warehouses) });
        let findings = bed.drive(u64::from(warehouses), 4_000, 12);
        assert_sound(&findings);
        let named = ["condition_1", "condition_8", "condition_12", "orders", "digest", "stocks"];
        assert!(named.iter().all(|name| findings.iter().any(|finding| finding.name == *name)));
        let ended = |kind: Kind| bed.by_kind[kind as usize];
        for kind in Kind::ALL {
            assert!(ended(kind).committed > 100, "{kind:?}: {:?}", ended(kind));
            assert_eq!(ended(kind).restarted_out + ended(kind).turned_away, 0);
        }
        let aborted: Vec<u64> = Kind::ALL.iter().map(|kind| ended(*kind).aborted).collect();
        assert!((4..40).contains(&aborted[0]) && aborted[1..] == [0; 4], "{aborted:?}");
        // The names never change, so only what does change is looked at again.
        let restarted: Vec<ProcedureId> = bed.restarts.keys().copied().collect();
        assert_eq!(restarted, [DELIVERY, STOCK_LEVEL]);
    }
}

#[test]
fn every_mix_keeps_the_conditions_and_what_is_left_out_does_not_happen() {
    for mix in [Mix::NEW_ORDER, Mix::PAYMENT, Mix::HALVES, Mix::read_only(50.0)] {
        let mut bed = Bed::loaded(Parameters { mix, ..parameters(2) });
        assert_sound(&bed.drive(3, 600, 4));
        for (kind, percent) in Kind::ALL.into_iter().zip(mix.percents()) {
            assert_eq!(bed.by_kind[kind as usize].committed > 0, percent > 0.0, "{mix} {kind:?}");
        }
    }
}

#[test]
fn a_skipped_stock_update_is_caught() {
    let mut bed = Bed::new(parameters(2), register_with_planted_bug);
    bed.load(7, 1);
    let findings = bed.drive(5, 500, 4);
    assert_eq!(wrong(&findings), ["stocks"]);
    let text = findings.iter().find_map(|finding| finding.wrong.as_ref()).unwrap();
    assert!(text.contains("the stocks of warehouse 1 say"), "{text}");
}

#[test]
fn loading_is_the_same_whoever_loads() {
    let digest = |seed, populations| -> Digest {
        let mut bed = Bed::new(parameters(3), super::register);
        bed.load(seed, populations);
        bed.executor.digest()
    };
    let alone = digest(7, 1);
    assert_eq!([digest(7, 2), digest(7, 7), digest(7, 1_000)], [alone; 3]);
    assert_ne!(digest(8, 1), alone);
    let mut bed = Bed::loaded(parameters(3));
    assert_sound(&bed.findings(Vec::new()));
    // An item is the same in every warehouse; a stock is not.
    assert_eq!(bed.row(1, Row::Item(3), None), bed.row(2, Row::Item(3), None));
    assert_ne!(bed.row(1, Row::Stock(3), None), bed.row(2, Row::Stock(3), None));
}

#[test]
fn the_population_is_the_specifications() {
    let scale = Scale { districts: 1, customers: 1_200, items: 500, orders: 1_200, undelivered: 360 };
    let mut bed = Bed::loaded(Parameters { scale, ..Parameters::default() });
    assert_sound(&bed.findings(Vec::new()));
    let mut lines = BTreeMap::new();
    let (mut bad, mut by_name, mut lengths) = (0, 0, Vec::new());
    for (db, key, cell) in bed.executor.records() {
        let bytes = cell.string().unwrap();
        match Named::read(key).filter(|_| db == DB).map(|named| named.row) {
            Some(Row::Customer(..)) => {
                let row = Customer::read(bytes).unwrap();
                bad += u32::from(row.credit == b"BC");
                lengths.push(row.data.len());
                assert_eq!((row.middle, row.phone.len(), row.zip.len()), (&b"OE"[..], 16, 9));
                assert!(row.zip.ends_with(b"11111"));
            }
            Some(Row::Names(..)) => by_name += schema::customers_of_name(bytes).len(),
            _ => {}
        }
        if let Some((_, suffix)) = ordain_model::split_covered(key).filter(|_| db != DB)
            && let Some(Covered::Order(number)) = Covered::read(suffix)
        {
            let row = Order::read(bytes).unwrap();
            *lines.entry(row.lines).or_insert(0u64) += 1;
            assert_eq!(row.carrier == 0, number > 840);
        }
    }
    assert_eq!(by_name, 1_200);
    assert!((80..160).contains(&bad), "{bad}");
    assert!(lengths.iter().all(|len| (300..=500).contains(len)));
    assert!(lines.keys().copied().eq(5..=15) && lines.values().all(|n| (60..170).contains(n)), "{lines:?}");
    // A quarter of the items is enough to see that prices are spread over their range.
    let prices: Vec<i64> = (1..=120)
        .map(|i| schema::Item::read(&bed.row(1, Row::Item(i), None).unwrap()).unwrap().price_cents)
        .collect();
    assert!(prices.iter().all(|p| (100..=10_000).contains(p)) && prices.iter().max() > Some(&9_000));
}

#[test]
fn loading_at_full_scale_names_every_row_once() {
    let mut seen = BTreeMap::new();
    let mut orders = BTreeMap::new();
    let workload = Tpcc::new(Parameters::default()).unwrap();
    for number in 0..3 {
        let mut source = workload.source(1, number, 3);
        while let Some(procedure) = source.load() {
            let bytes = args_of(|args| source.write_args(args));
            let args = Args::parse(&bytes).unwrap();
            let (keys, packed) = split_packed(args).unwrap();
            assert!(args.len() <= 201);
            for key in keys {
                match (Named::read(key.bytes).unwrap().row, procedure) {
                    (Row::District(district), load::LOAD_ORDERS) => {
                        let word = |at: usize| u32::from_le_bytes(packed[at..at + 4].try_into().unwrap());
                        *orders.entry(district).or_insert(0) +=
                            word(packed.len() - 4) - word(packed.len() - 8);
                    }
                    _ => *seen.entry(key.bytes.to_vec()).or_insert(0) += 1,
                }
            }
        }
    }
    assert!(seen.values().all(|times| *times == 1));
    assert_eq!(seen.len(), 1 + 10 + 2 * 100_000 + 30_000 + 10_000);
    assert!(orders.len() == 10 && orders.values().all(|n| *n == 3_000));
}

/// Damages one row after another, each time sees what is found, and repairs it.
#[test]
fn every_condition_is_seen_to_fail() {
    let mut bed = Bed::loaded(parameters(2));
    let mix = Mix { delivery: 2.0, new_order: 47.0, ..Mix::FULL };
    bed.workload = Tpcc::new(Parameters { mix, ..parameters(2) }).unwrap();
    let mut source = Clients::new(&bed.workload, 1, 0, 1);
    for _ in 0..300 {
        let Made { kind, .. } = source.next();
        let made = source.made().unwrap().clone();
        let result = bed.call(&made);
        bed.by_kind[usize::from(kind)].count(result.status);
        source.heard(kind, result.status, &result.reply);
    }
    let testimony = vec![source.testimony()];
    assert_sound(&bed.findings(testimony.clone()));

    let district = |bed: &Bed| bed.row(2, Row::District(1), None).unwrap();
    let oldest = District::read(&district(&bed)).unwrap().oldest_new_order;
    let new_orders = District::read(&district(&bed)).unwrap().next_order - oldest;
    assert!(oldest > 1 && new_orders > 3, "{oldest} {new_orders}");
    // A loaded order that is delivered, whose lines are for nothing; and a new one, and its customer.
    let (delivered, undelivered) = (1, oldest + 1);
    let order =
        Order::read(&bed.row(2, Row::District(1), Some(Covered::Order(undelivered))).unwrap()).unwrap();

    type Damage = fn(&mut Vec<u8>);
    macro_rules! numbers {
        ($table:ident, $row:ident => $change:expr) => {{
            let damage: Damage = |bytes| {
                let mut $row = $table::read(bytes).unwrap();
                $change;
                let numbers = $row.numbers();
                overwrite(bytes, &numbers);
            };
            Some(damage)
        }};
    }
    let garbage: Damage = |bytes| bytes.push(0);
    let first: Damage = |bytes| bytes.copy_from_slice(&99u32.to_le_bytes());
    let d = Row::District(1);
    let c = Row::Customer(1, order.customer);
    /// What is damaged, how (or else deleted), and what is found then.
    type Case<'a> = (Row<'a>, Option<Covered>, Option<Damage>, &'a [&'a str]);
    let cases: Vec<Case<'_>> = vec![
        (
            Row::Warehouse,
            None,
            numbers!(Warehouse, row => row.ytd_cents += 1),
            &["condition_1", "condition_8"],
        ),
        (d, None, numbers!(District, row => row.ytd_cents += 1), &["condition_1", "condition_9"]),
        (d, None, numbers!(District, row => row.next_order += 1), &["condition_2"]),
        (d, None, numbers!(District, row => row.oldest_new_order += 1), &["condition_3", "condition_11"]),
        (
            d,
            Some(Covered::NewOrder(undelivered)),
            None,
            &["condition_3", "condition_5", "condition_11", "deliveries"],
        ),
        (
            d,
            Some(Covered::Order(undelivered)),
            numbers!(Order, row => row.lines += 1),
            &["condition_4", "condition_6"],
        ),
        (
            d,
            Some(Covered::Order(undelivered)),
            numbers!(Order, row => row.carrier = 1),
            &["condition_5", "condition_7", "condition_11"],
        ),
        (d, Some(Covered::OrderLine(delivered, 1)), None, &["condition_4", "condition_6"]),
        (
            d,
            Some(Covered::OrderLine(delivered, 1)),
            numbers!(OrderLine, row => row.delivered_ms = 0),
            &["condition_7"],
        ),
        (
            d,
            Some(Covered::OrderLine(delivered, 1)),
            numbers!(OrderLine, row => row.amount_cents = 5),
            &["condition_10", "condition_12"],
        ),
        (
            c,
            Some(Covered::History(1)),
            numbers!(History, row => row.amount_cents += 1),
            &["condition_8", "condition_9", "condition_10", "payments"],
        ),
        (c, None, numbers!(Customer, row => row.balance_cents += 1), &["condition_10", "condition_12"]),
        (c, None, numbers!(Customer, row => row.ytd_payment_cents += 1), &["condition_12"]),
        (c, None, numbers!(Customer, row => row.deliveries += 1), &["deliveries"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.ytd += 1), &["stocks"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.orders += 1), &["stocks"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.remote_orders += 1), &["stocks"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.quantity = 9), &["stock_quantities"]),
        (Row::Item(3), None, Some(garbage), &["whole_rows"]),
        (Row::Item(3), None, None, &["loaded_rows"]),
        (Row::Names(1, b"BARBARBAR"), None, Some(garbage), &["whole_rows"]),
        (d, Some(Covered::Newest(order.customer)), Some(first), &["newest_orders"]),
        (d, Some(Covered::Newest(order.customer)), None, &["newest_orders"]),
    ];
    let mut failed = std::collections::BTreeSet::new();
    for (row, covered, damage, expected) in cases {
        let before = bed.row(2, row, covered).unwrap();
        let mut after = before.clone();
        if let Some(damage) = damage {
            damage(&mut after);
        }
        bed.poke(2, row, covered, damage.map(|_| &*after));
        let mut found = wrong(&bed.findings(testimony.clone()));
        found.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{row:?} {covered:?}");
        failed.extend(found);
        bed.poke(2, row, covered, Some(&before));
    }
    assert_sound(&bed.findings(testimony.clone()));

    // What was answered and what is there are held against each other too.
    for (kind, name) in [(Kind::NewOrder, "orders"), (Kind::Payment, "history")] {
        bed.by_kind[kind as usize].committed += 1;
        assert_eq!(wrong(&bed.findings(testimony.clone())), [name]);
        bed.by_kind[kind as usize].committed -= 1;
        failed.insert(name);
    }
    let silence = wrong(&bed.findings(Vec::new()));
    assert_eq!(silence, ["order_lines", "payments", "deliveries"]);
    assert_eq!(wrong(&bed.findings(vec![testimony[0].clone(), vec![1]])), ["answers"]);
    failed.extend(silence);
    failed.extend(["answers", "digest"]);
    let all: std::collections::BTreeSet<_> =
        bed.findings(testimony).iter().map(|finding| finding.name).collect();
    assert_eq!(failed, all);
}

#[test]
fn an_order_of_an_unused_item_leaves_no_trace() {
    let mut bed = Bed::loaded(parameters(2));
    let line = |item, supply_warehouse| Line { item, supply_warehouse, quantity: 3 };
    let lines = vec![line(1, 1), line(2, 2), line(SMALL.items + 1, 1)];
    let call = NewOrderCall { warehouse: 1, district: 2, customer: 5, lines };
    let before = bed.executor.digest();
    let result = bed.call(&Transaction::NewOrder(call.clone()));
    assert_eq!(result.status, OutcomeStatus::Aborted(Abort::Logic));
    assert_eq!(Datum::first(&result.reply), Datum::Error(UNUSED_ITEM.as_bytes()));
    assert_eq!(bed.executor.digest(), before);
    let lines = call.lines[..2].to_vec();
    assert_eq!(
        bed.call(&Transaction::NewOrder(NewOrderCall { lines, ..call })).status,
        OutcomeStatus::Committed
    );
    assert_ne!(bed.executor.digest(), before);
}

/// One of each, by hand: what it changes and what it answers.
#[test]
fn the_transactions_do_what_the_specification_says() {
    let mut bed = Bed::loaded(parameters(2));
    let (w, d) = (1, 2);
    let stock = |bed: &Bed, w, i| {
        let bytes = bed.row(w, Row::Stock(i), None).unwrap();
        let row = Stock::read(&bytes).unwrap();
        (row.quantity, row.ytd, row.orders, row.remote_orders, row.dist_info(d).to_vec())
    };
    let before = [stock(&bed, 1, 1), stock(&bed, 2, 2)];
    let line = |item, supply_warehouse, quantity| Line { item, supply_warehouse, quantity };
    let lines = vec![line(1, 1, 4), line(2, 2, 10), line(1, 1, 1)];
    let result =
        bed.call(&Transaction::NewOrder(NewOrderCall { warehouse: w, district: d, customer: 5, lines }));
    assert_eq!(result.status, OutcomeStatus::Committed);
    let number = SMALL.orders + 1;
    let (Datum::Array(9), rest) = Datum::split(&result.reply).unwrap() else { panic!() };
    assert_eq!(Datum::first(rest), Datum::Int(i64::from(number)));
    let taken = |quantity: i16, n: i16| if quantity - n >= 10 { quantity - n } else { quantity - n + 91 };
    let after = [stock(&bed, 1, 1), stock(&bed, 2, 2)];
    assert_eq!((after[0].0, after[0].1, after[0].2, after[0].3), (taken(taken(before[0].0, 4), 1), 5, 2, 0));
    assert_eq!((after[1].0, after[1].1, after[1].2, after[1].3), (taken(before[1].0, 10), 10, 1, 1));
    let covered = |bed: &Bed, covered| bed.row(w, Row::District(d), Some(covered)).unwrap();
    let order = Order::read(&covered(&bed, Covered::Order(number))).unwrap();
    assert_eq!((order.customer, order.carrier, order.lines, order.all_local), (5, 0, 3, 0));
    let bytes = covered(&bed, Covered::OrderLine(number, 2));
    let second = OrderLine::read(&bytes).unwrap();
    let item = bed.row(w, Row::Item(2), None).unwrap();
    assert_eq!(second.amount_cents, 10 * schema::Item::read(&item).unwrap().price_cents);
    assert_eq!((second.supply_warehouse, second.dist_info), (2, &*before[1].4));

    // The customer asks for it, by number and by name.
    let customer = |bed: &Bed| bed.row(w, Row::Customer(d, 5), None).unwrap();
    let before = customer(&bed);
    let before = Customer::read(&before).unwrap();
    for who in [Who::Id(5), Who::Name(before.last.to_vec())] {
        let call = OrderStatusCall { warehouse: w, district: d, customer: who };
        let reply = bed.call(&Transaction::OrderStatus(call)).reply;
        let (_, rest) = Datum::split(&reply).unwrap();
        let (who, order) = Datum::split_whole(rest).unwrap();
        assert_eq!(Datum::first(&who[5..]), Datum::Int(5));
        assert_eq!(Datum::first(&order[5..]), Datum::Int(i64::from(number)));
    }

    // And pays, at the other warehouse.
    let call = PaymentCall {
        warehouse: 2,
        district: 1,
        customer_warehouse: w,
        customer_district: d,
        customer: Who::Name(before.last.to_vec()),
        amount_cents: 1_234,
    };
    let reply = bed.call(&Transaction::Payment(call)).reply;
    assert_eq!(super::payment::read_reply(&reply), Some(1_234));
    let paid = customer(&bed);
    let paid = Customer::read(&paid).unwrap();
    assert_eq!((paid.balance_cents, paid.payments), (-2_234, 2));
    let history = bed.row(w, Row::Customer(d, 5), Some(Covered::History(2))).unwrap();
    let history = History::read(&history).unwrap();
    assert_eq!((history.warehouse, history.district, history.amount_cents), (2, 1, 1_234));
    let names = bed.row(2, Row::Warehouse, None).unwrap();
    assert!(history.data.starts_with(Warehouse::read(&names).unwrap().name));

    // Deliveries until its turn has come; then there is nothing left to deliver here.
    let call = Transaction::Delivery(DeliveryCall { warehouse: w, districts: SMALL.districts, carrier: 9 });
    for _ in 0..SMALL.undelivered + 2 {
        bed.call(&call);
    }
    let order = Order::read(&covered(&bed, Covered::Order(number))).unwrap();
    assert_eq!(order.carrier, 9);
    let reply = bed.call(&call).reply;
    assert_eq!(reply, {
        let mut none = Vec::new();
        let mut writer = ordain_model::Writer(&mut none);
        writer.array(3);
        (0..3).for_each(|_| writer.nil());
        none
    });
    let total: i64 = (1..=3)
        .map(|line| OrderLine::read(&covered(&bed, Covered::OrderLine(number, line))).unwrap().amount_cents)
        .sum();
    let rich = customer(&bed);
    let rich = Customer::read(&rich).unwrap();
    assert!(rich.balance_cents >= total - 2_234 && rich.deliveries >= 1);

    // All of the stock is below the largest threshold, and none below the smallest.
    let low = |bed: &mut Bed, threshold| {
        let call = StockLevelCall { warehouse: w, district: d, threshold };
        Datum::first(&bed.call(&Transaction::StockLevel(call)).reply).as_int().unwrap()
    };
    assert_eq!(low(&mut bed, 0), 0);
    let all = low(&mut bed, 255);
    assert!(all > 20 && all <= i64::from(SMALL.items), "{all}");
}

#[test]
fn bad_credit_keeps_a_record_of_payments() {
    let mut bed = Bed::loaded(parameters(1));
    let is_bad = |bed: &Bed, c: u32| {
        Customer::read(&bed.row(1, Row::Customer(1, c), None).unwrap()).unwrap().credit == b"BC"
    };
    // With so few customers there may be none: then one is made.
    let customer = (1..=SMALL.customers).find(|c| is_bad(&bed, *c)).unwrap_or_else(|| {
        let bytes = bed.row(1, Row::Customer(1, 1), None).unwrap();
        let row = Customer { credit: b"BC", ..Customer::read(&bytes).unwrap() }.encode();
        bed.poke(1, Row::Customer(1, 1), None, Some(&row));
        1
    });
    for n in 0..30 {
        let call = PaymentCall {
            warehouse: 1,
            district: 3,
            customer_warehouse: 1,
            customer_district: 1,
            customer: Who::Id(customer),
            amount_cents: 10_000 + n,
        };
        bed.call(&Transaction::Payment(call));
    }
    let bytes = bed.row(1, Row::Customer(1, customer), None).unwrap();
    let data = Customer::read(&bytes).unwrap().data;
    assert!(data.starts_with(format!("{customer} 1 1 3 1 100.29 {customer} 1 1 3 1 100.28 ").as_bytes()));
    assert_eq!(data.len(), 500);
}

#[test]
fn calls_are_read_back_as_they_were_made_up() {
    let workload = Tpcc::new(Parameters { partitions: 3, ..parameters(5) }).unwrap();
    let mut source = Clients::new(&workload, 3, 0, 1);
    for _ in 0..2_000 {
        let Made { procedure, .. } = source.next();
        let bytes = args_of(|args| source.write_args(args));
        let args = Args::parse(&bytes).unwrap();
        let read = match procedure {
            NEW_ORDER => NewOrderCall::decode(args).map(Transaction::NewOrder),
            PAYMENT => PaymentCall::decode(args).map(Transaction::Payment),
            ORDER_STATUS => OrderStatusCall::decode(args).map(Transaction::OrderStatus),
            DELIVERY => DeliveryCall::decode(args).map(Transaction::Delivery),
            _ => StockLevelCall::decode(args).map(Transaction::StockLevel),
        };
        assert_eq!(read.as_ref(), source.made());
    }
}

/// The arguments with one change: an item dropped, repeated, replaced, cut or with another byte.
fn damaged(args: &[u8], random: &mut Random) -> Vec<u8> {
    let mut items: Vec<Vec<u8>> = Args::parse(args).unwrap().iter().map(|arg| arg.bytes.to_vec()).collect();
    let at = random.below(items.len() as u64) as usize;
    let other = items[random.below(items.len() as u64) as usize].clone();
    match random.below(5) {
        0 => drop(items.remove(at)),
        1 => items.insert(at, other),
        2 => items[at] = other,
        3 => items[at].truncate(random.below(8) as usize),
        _ => {
            let byte = random.below(items[at].len() as u64) as usize;
            items[at][byte] = random.bits() as u8;
        }
    }
    encode(&items)
}

#[test]
fn nonsense_is_refused_or_harmless_and_nothing_panics() {
    let mut bed = Bed::loaded(parameters(2));
    let mut source = Clients::new(&bed.workload, 3, 0, 1);
    let mut random = Random::new(8);
    let (mut refused, mut ran) = (0, 0);
    let mut count = |is_ok: bool| if is_ok { ran += 1 } else { refused += 1 };
    for _ in 0..3_000 {
        let made = source.next();
        let args = args_of(|args| source.write_args(args));
        // Damaged by a client: what its reconnaissance is, or what it would be without one.
        let nonsense = damaged(&args, &mut random);
        count(bed.try_run(made.procedure, &nonsense).is_ok());
        let flight = bed.plan(made.procedure, &nonsense, &Known::default());
        count(flight.is_ok());
        if flight.is_ok() {
            let mut flight = bed.take_off(0, made, nonsense);
            (0..3).for_each(|_| _ = bed.try_step(&mut flight));
        }
        // Damaged behind the reconnaissance, as no gateway does it.
        let mut flight = bed.take_off(0, made, args);
        while !matches!(flight.step, Reconnaissance::Ready(_)) {
            bed.step(&mut flight);
        }
        if let Reconnaissance::Ready(args) = &flight.step {
            count(bed.try_run(made.procedure, &damaged(args, &mut random)).is_ok());
        }
    }
    assert!(refused > 3_000 && ran > 1_000, "{refused} refused, {ran} ran");
}

#[test]
fn what_is_drawn_has_the_shares_that_are_asked_for() {
    let draw = |remote, partitions| {
        let parameters = Parameters { warehouses: 6, partitions, remote, ..Parameters::default() };
        let workload = Tpcc::new(parameters).unwrap();
        let mut source = Clients::new(&workload, 1, 0, 1);
        (0..60_000)
            .map(|_| {
                source.next();
                source.made().unwrap().clone()
            })
            .collect::<Vec<_>>()
    };
    // Five standard deviations around what is expected of `of` draws.
    let near = |count: usize, of: usize, share: f64| {
        let (expected, of) = (of as f64 * share, of as f64);
        (count as f64 - expected).abs() <= 5.0 * (of * share * (1.0 - share)).sqrt()
    };
    let made = draw(Remote::Standard, 1);
    let count = |of: fn(&Transaction) -> bool| made.iter().filter(|made| of(made)).count();
    assert!(near(count(|m| matches!(m, Transaction::NewOrder(_))), 60_000, 0.45));
    assert!(near(count(|m| matches!(m, Transaction::Payment(_))), 60_000, 0.43));
    assert!(near(count(|m| matches!(m, Transaction::OrderStatus(_))), 60_000, 0.04));
    assert!(near(count(|m| matches!(m, Transaction::Delivery(_))), 60_000, 0.04));
    assert!(near(count(|m| matches!(m, Transaction::StockLevel(_))), 60_000, 0.04));

    let orders = |made: &[Transaction]| -> Vec<NewOrderCall> {
        made.iter()
            .filter_map(|m| if let Transaction::NewOrder(m) = m { Some(m.clone()) } else { None })
            .collect()
    };
    let payments = |made: &[Transaction]| -> Vec<PaymentCall> {
        made.iter()
            .filter_map(|m| if let Transaction::Payment(m) = m { Some(m.clone()) } else { None })
            .collect()
    };
    let remote_lines = |order: &NewOrderCall| {
        order.lines.iter().filter(|line| line.supply_warehouse != order.warehouse).count()
    };
    let (new_orders, paid) = (orders(&made), payments(&made));
    let lines: usize = new_orders.iter().map(|order| order.lines.len()).sum();
    assert!(near(new_orders.iter().map(remote_lines).sum(), lines, 0.01));
    let unused = |order: &&NewOrderCall| order.lines.iter().any(|line| line.item > 100_000);
    assert!(near(new_orders.iter().filter(unused).count(), new_orders.len(), 0.01));
    for count in 5..=15 {
        let of_this_length = new_orders.iter().filter(|order| order.lines.len() == count).count();
        assert!(near(of_this_length, new_orders.len(), 1.0 / 11.0), "{count}");
    }
    let by_name = paid.iter().filter(|payment| matches!(payment.customer, Who::Name(_))).count();
    assert!(near(by_name, paid.len(), 0.6));
    let remote = |payment: &&PaymentCall| payment.customer_warehouse != payment.warehouse;
    assert!(near(paid.iter().filter(remote).count(), paid.len(), 0.15));
    for warehouse in 1..=6 {
        let home = paid.iter().filter(|payment| payment.warehouse == warehouse).count();
        assert!(near(home, paid.len(), 1.0 / 6.0));
    }

    for (share, partitions) in [(0.1, 1), (0.15, 3), (1.0, 6), (0.0, 2)] {
        let made = draw(Remote::Share(share), partitions);
        let (new_orders, paid) = (orders(&made), payments(&made));
        assert!(new_orders.iter().all(|order| remote_lines(order) <= 1));
        let far = new_orders.iter().filter(|order| remote_lines(order) == 1).count();
        assert!(near(far, new_orders.len(), share), "{far} of {} at {share}", new_orders.len());
        assert!(near(paid.iter().filter(remote).count(), paid.len(), share));
        let pairs = new_orders
            .iter()
            .flat_map(|order| order.lines.iter().map(|line| (order.warehouse, line.supply_warehouse)))
            .chain(paid.iter().map(|payment| (payment.warehouse, payment.customer_warehouse)));
        for (home, second) in pairs.filter(|(home, second)| home != second) {
            assert!(partitions == 1 || home as usize % partitions != second as usize % partitions);
        }
    }
}

#[test]
fn mixes_are_read_by_name_and_nonsense_is_refused_by_name() {
    assert_eq!("full".parse(), Ok(Mix::FULL));
    assert_eq!("45/43/4/4/4".parse(), Ok(Mix::FULL));
    assert_eq!("new-order".parse(), Ok(Mix::NEW_ORDER));
    assert_eq!("halves".parse(), Ok(Mix::HALVES));
    assert_eq!(Mix::FULL.to_string(), "45/43/4/4/4");
    let mix: Mix = "read-only:20".parse().unwrap();
    assert_eq!(mix.to_string(), "39.13/37.39/10/3.48/10");
    assert!((mix.percents().iter().sum::<f64>() - 100.0).abs() < 1e-9);
    for text in [
        "",
        "everything",
        "1/2/3",
        "read-only:",
        "read-only:120",
        "45/43/4/4/5",
        "-5/105/0/0/0",
        "NaN/0/0/0/100",
    ] {
        assert!(text.parse::<Mix>().is_err(), "{text}");
    }
    let refusal = |parameters| Tpcc::new(parameters).unwrap_err().to_string();
    let sound = parameters(2);
    assert!(refusal(Parameters { warehouses: 0, ..sound }).contains("warehouses"));
    assert!(refusal(Parameters { partitions: 0, ..sound }).contains("partitions"));
    assert!(refusal(Parameters { partitions: 1_025, ..sound }).contains("partitions"));
    assert!(refusal(Parameters { remote: Remote::Share(1.1), ..sound }).contains("share"));
    assert!(refusal(Parameters { remote: Remote::Share(0.1), ..parameters(1) }).contains("one warehouse"));
    let scaled = |scale| refusal(Parameters { scale, ..sound });
    assert!(scaled(Scale { districts: 11, ..SMALL }).contains("districts"));
    assert!(scaled(Scale { items: 0, ..SMALL }).contains("items"));
    assert!(scaled(Scale { customers: 19, ..SMALL }).contains("20 orders of 19 customers"));
    assert!(scaled(Scale { undelivered: 21, ..SMALL }).contains("21 undelivered"));
    let mix = Mix { payment: 44.0, ..Mix::FULL };
    assert!(refusal(Parameters { mix, ..sound }).contains("45/44/4/4/4"));
}

#[test]
fn a_prefix_is_what_the_workload_uses() {
    let workload = Tpcc::new(Parameters { partitions: 4, ..parameters(9) }).unwrap();
    assert!(workload.prefixes.iter().zip(1..).all(|(prefix, w)| *prefix == Prefix::new(w, 4)));
}
