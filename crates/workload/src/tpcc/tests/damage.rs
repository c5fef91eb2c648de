//! What the checks find: every finding and what it takes to bring it about, a planted bug, and nonsense in arguments.

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_skipped_stock_update_is_caught() {
    let mut bed = Bed::new(parameters(2), register_with_planted_bug);
    bed.load(7, 1);
    let findings = bed.drive(5, 500, 4);
    assert_eq!(wrong(&findings), ["stocks"]);
    let text = findings.iter().find_map(|finding| finding.wrong.as_ref()).unwrap();
    assert!(text.contains("the stocks of warehouse 1 count"), "{text}");
}

type Damage = fn(&mut Vec<u8>);

/// The damaged row, the change (none: it is deleted), and the findings then.
type Case = (Row<'static>, Option<Child>, Option<Damage>, &'static [&'static str]);

/// A bed after a run, with the orders of a district that the cases are about.
struct Finished {
    bed: Bed,
    summaries: Vec<Vec<u8>>,
    /// A loaded order that is delivered, whose lines are for nothing.
    delivered: u32,
    /// An order that is not delivered, and its customer.
    undelivered: u32,
    customer: u32,
    /// An order that was placed in the run.
    placed: u32,
}

impl Finished {
    fn new() -> Finished {
        let mut bed = Bed::loaded(parameters(2));
        let mix = Mix { delivery: 2.0, new_order: 47.0, ..Mix::FULL };
        bed.workload = Tpcc::new(Parameters { mix, ..parameters(2) }).unwrap();
        let mut source = Clients::new(&bed.workload, 1, 0, 1);
        for _ in 0..300 {
            let Made { kind, .. } = source.next();
            let made = source.made().unwrap().clone();
            let result = bed.call(&made);
            bed.by_kind[usize::from(kind)].count(result.status);
            source.answered(kind, result.status, &result.reply);
        }
        let district = bed.row(2, Row::District(1), None).unwrap();
        let District { next_order, oldest_new_order: oldest, .. } = District::read(&district).unwrap();
        assert!(oldest > 1 && next_order > oldest + 3, "{oldest} {next_order}");
        assert!(next_order - 1 > SMALL.orders);
        let undelivered = oldest + 1;
        let order = bed.row(2, Row::District(1), Some(Child::Order(undelivered))).unwrap();
        let customer = Order::read(&order).unwrap().customer;
        let (summaries, placed) = (vec![source.summary()], next_order - 1);
        let mut finished = Finished { bed, summaries, delivered: 1, undelivered, customer, placed };
        finished.assert_sound();
        finished
    }

    fn assert_sound(&mut self) {
        assert_sound(&self.bed.findings(self.summaries.clone()));
    }

    fn wrong(&mut self) -> Vec<&'static str> {
        wrong(&self.bed.findings(self.summaries.clone()))
    }
}

/// Makes a change of the numbers of a row.
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

/// A case for each row that can be damaged.
fn cases(finished: &Finished) -> Vec<Case> {
    let Finished { delivered, undelivered, customer, placed, .. } = *finished;
    let garbage: Damage = |bytes| bytes.push(0);
    let last_byte: Damage = |bytes| *bytes.last_mut().unwrap() ^= 1;
    let first: Damage = |bytes| bytes.copy_from_slice(&99u32.to_le_bytes());
    let d = Row::District(1);
    let c = Row::Customer(1, customer);
    vec![
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
            Some(Child::NewOrder(undelivered)),
            None,
            &["condition_3", "condition_5", "condition_11", "deliveries"],
        ),
        (
            d,
            Some(Child::Order(undelivered)),
            numbers!(Order, row => row.lines += 1),
            &["condition_4", "condition_6"],
        ),
        (
            d,
            Some(Child::Order(undelivered)),
            numbers!(Order, row => row.carrier = 1),
            &["condition_5", "condition_7", "condition_11"],
        ),
        (d, Some(Child::OrderLine(delivered, 1)), None, &["condition_4", "condition_6"]),
        (
            d,
            Some(Child::OrderLine(delivered, 1)),
            numbers!(OrderLine, row => row.delivered_ms = 0),
            &["condition_7"],
        ),
        (
            d,
            Some(Child::OrderLine(delivered, 1)),
            numbers!(OrderLine, row => row.amount_cents = 5),
            &["condition_10", "condition_12"],
        ),
        (
            c,
            Some(Child::History(1)),
            numbers!(History, row => row.amount_cents += 1),
            &["condition_8", "condition_9", "condition_10", "payments"],
        ),
        (c, None, numbers!(Customer, row => row.balance_cents += 1), &["condition_10", "condition_12"]),
        (c, None, numbers!(Customer, row => row.ytd_payment_cents += 1), &["condition_12"]),
        (c, None, numbers!(Customer, row => row.deliveries += 1), &["customer_counts", "deliveries"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.ytd += 1), &["stock_quantities", "stocks"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.orders += 1), &["stocks"]),
        (
            Row::Stock(3),
            None,
            numbers!(Stock, row => row.quantity = 10 + (row.quantity - 9) % 91),
            &["stock_quantities"],
        ),
        (c, None, numbers!(Customer, row => row.payments += 1), &["customer_counts"]),
        (d, Some(Child::Order(placed)), numbers!(Order, row => row.all_local ^= 1), &["orders_as_placed"]),
        (
            d,
            Some(Child::OrderLine(placed, 1)),
            numbers!(OrderLine, row => row.amount_cents += 1),
            &["orders_as_placed"],
        ),
        (d, Some(Child::OrderLine(placed, 1)), Some(last_byte), &["orders_as_placed"]),
        (
            d,
            Some(Child::OrderLine(placed, 1)),
            numbers!(OrderLine, row => row.quantity += 1),
            &["orders_as_placed", "stocks"],
        ),
        (Row::Item(3), None, numbers!(Item, row => row.price_cents += 1), &["orders_as_placed"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.remote_orders += 1), &["stocks"]),
        (Row::Stock(3), None, numbers!(Stock, row => row.quantity = 9), &["stock_quantities"]),
        (Row::Item(3), None, Some(garbage), &["whole_rows"]),
        (Row::Item(3), None, None, &["loaded_rows"]),
        (Row::Names(1, b"BARBARBAR"), None, Some(garbage), &["whole_rows"]),
        (d, Some(Child::Newest(customer)), Some(first), &["newest_orders"]),
        (d, Some(Child::Newest(customer)), None, &["newest_orders"]),
    ]
}

/// Damages one row after another, each time checks what is found, and repairs it.
#[test]
fn every_condition_is_seen_to_fail() {
    let mut finished = Finished::new();
    let mut failed = damage_rows(&mut finished);
    damage_of_several_rows(&mut finished);
    failed.extend(wrong_answers(&mut finished));
    failed.insert("digest");
    let all: BTreeSet<_> =
        finished.bed.findings(finished.summaries.clone()).iter().map(|finding| finding.name).collect();
    assert_eq!(failed, all);
}

/// Runs the cases, and returns all findings.
fn damage_rows(finished: &mut Finished) -> BTreeSet<&'static str> {
    let mut failed = BTreeSet::new();
    for (row, child, damage, expected) in cases(finished) {
        let before = finished.bed.row(2, row, child).unwrap();
        let mut after = before.clone();
        if let Some(damage) = damage {
            damage(&mut after);
        }
        finished.bed.poke(2, row, child, damage.map(|_| &*after));
        let found: BTreeSet<_> = finished.wrong().into_iter().collect();
        assert_eq!(found, expected.iter().copied().collect(), "{row:?} {child:?}");
        failed.extend(found);
        finished.bed.poke(2, row, child, Some(&before));
    }
    finished.assert_sound();
    failed
}

fn damage_of_several_rows(finished: &mut Finished) {
    // What one stock has too much and another too little is not evened out.
    let stocks = [3, 4].map(|item| finished.bed.row(2, Row::Stock(item), None).unwrap());
    for (item, before, more) in [(3, &stocks[0], 1), (4, &stocks[1], u32::MAX)] {
        let row = Stock::read(before).unwrap();
        let row = Stock { orders: row.orders.wrapping_add(more), ..row };
        assert_ne!(row.orders, u32::MAX, "the second must have been ordered");
        finished.bed.poke(2, Row::Stock(item), None, Some(&row.encode()));
    }
    assert_eq!(finished.wrong(), ["stocks"]);
    [3, 4]
        .into_iter()
        .zip(&stocks)
        .for_each(|(item, row)| finished.bed.poke(2, Row::Stock(item), None, Some(row)));
    // Bad credit that does not show: of a customer who has paid in the run.
    let payer = (1..=SMALL.customers).find(|c| {
        Customer::read(&finished.bed.row(2, Row::Customer(1, *c), None).unwrap()).unwrap().payments > 1
    });
    let payer = Row::Customer(1, payer.unwrap());
    let before = finished.bed.row(2, payer, None).unwrap();
    let row = Customer { credit: b"BC", data: b"nothing of payments", ..Customer::read(&before).unwrap() };
    finished.bed.poke(2, payer, None, Some(&row.encode()));
    assert_eq!(finished.wrong(), ["customer_counts"]);
    finished.bed.poke(2, payer, None, Some(&before));
}

/// Holds answers and rows against each other, and returns the findings.
fn wrong_answers(finished: &mut Finished) -> BTreeSet<&'static str> {
    let mut failed = BTreeSet::new();
    let rolled_back = finished.bed.by_kind[Kind::NewOrder as usize].aborted;
    for aborted in [rolled_back + 1, rolled_back - 1] {
        // One that had no reason to, and one that had and did not.
        let counts = &mut finished.bed.by_kind[Kind::NewOrder as usize];
        (counts.aborted, counts.committed) = (aborted, counts.committed + rolled_back - aborted);
        assert!(finished.wrong().contains(&"rollbacks"), "{aborted} {rolled_back}");
        let counts = &mut finished.bed.by_kind[Kind::NewOrder as usize];
        (counts.aborted, counts.committed) = (rolled_back, counts.committed + aborted - rolled_back);
    }
    for (kind, status, text) in [
        (Kind::NewOrder, OutcomeStatus::Aborted(Abort::Panic), UNUSED_ITEM),
        (Kind::NewOrder, OutcomeStatus::Aborted(Abort::Logic), "ERR"),
        (Kind::Payment, OutcomeStatus::Aborted(Abort::Logic), UNUSED_ITEM),
    ] {
        let mut reply = Vec::new();
        ordain_model::Writer(&mut reply).error(text);
        let mut source = Clients::new(&finished.bed.workload, 1, 0, 1);
        source.answered(kind as u8, status, &reply);
        let summaries = vec![finished.summaries[0].clone(), source.summary()];
        // A panic is never a reason, whatever it says.
        assert_eq!(wrong(&finished.bed.findings(summaries)), ["answers"], "{kind:?} {text}");
    }
    for (kind, name) in [(Kind::NewOrder, "orders"), (Kind::Payment, "history")] {
        finished.bed.by_kind[kind as usize].committed += 1;
        assert_eq!(finished.wrong(), [name]);
        finished.bed.by_kind[kind as usize].committed -= 1;
        failed.insert(name);
    }
    for kind in [Kind::Payment, Kind::OrderStatus] {
        finished.bed.by_kind[kind as usize].restarts += 1;
        assert_eq!(finished.wrong(), ["no_restarts_by_name"]);
        finished.bed.by_kind[kind as usize].restarts -= 1;
        failed.insert("no_restarts_by_name");
    }
    let silence = wrong(&finished.bed.findings(Vec::new()));
    assert_eq!(silence, ["order_lines", "payments", "deliveries", "rollbacks"]);
    let damaged = vec![finished.summaries[0].clone(), vec![1]];
    assert_eq!(wrong(&finished.bed.findings(damaged)), ["answers"]);
    failed.extend(silence);
    failed.insert("answers");
    failed
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
