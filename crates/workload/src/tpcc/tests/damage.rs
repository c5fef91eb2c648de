//! What the checks find: every finding and what it takes to bring it about, a planted bug, and nonsense in arguments.

use super::*;

#[test]
fn a_skipped_stock_update_is_caught() {
    let mut bed = Bed::new(parameters(2), register_with_planted_bug);
    bed.load(7, 1);
    let findings = bed.drive(5, 500, 4);
    assert_eq!(wrong(&findings), ["stocks"]);
    let text = findings.iter().find_map(|finding| finding.wrong.as_ref()).unwrap();
    assert!(text.contains("the stocks of warehouse 1 say"), "{text}");
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
    // One that was placed in the run.
    let placed = oldest + new_orders - 1;
    assert!(placed > SMALL.orders);
    let order = Order::read(&bed.row(2, Row::District(1), Some(Child::Order(undelivered))).unwrap()).unwrap();

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
    let last_byte: Damage = |bytes| *bytes.last_mut().unwrap() ^= 1;
    let first: Damage = |bytes| bytes.copy_from_slice(&99u32.to_le_bytes());
    let d = Row::District(1);
    let c = Row::Customer(1, order.customer);
    /// What is damaged, how (or else deleted), and what is found then.
    type Case<'a> = (Row<'a>, Option<Child>, Option<Damage>, &'a [&'a str]);
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
        (d, Some(Child::Newest(order.customer)), Some(first), &["newest_orders"]),
        (d, Some(Child::Newest(order.customer)), None, &["newest_orders"]),
    ];
    let mut failed = std::collections::BTreeSet::new();
    for (row, child, damage, expected) in cases {
        let before = bed.row(2, row, child).unwrap();
        let mut after = before.clone();
        if let Some(damage) = damage {
            damage(&mut after);
        }
        bed.poke(2, row, child, damage.map(|_| &*after));
        let mut found = wrong(&bed.findings(testimony.clone()));
        found.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{row:?} {child:?}");
        failed.extend(found);
        bed.poke(2, row, child, Some(&before));
    }
    assert_sound(&bed.findings(testimony.clone()));

    // What one stock has too much and another too little is not evened out.
    let stocks = [3, 4].map(|item| bed.row(2, Row::Stock(item), None).unwrap());
    for (item, before, more) in [(3, &stocks[0], 1), (4, &stocks[1], u32::MAX)] {
        let row = Stock::read(before).unwrap();
        let row = Stock { orders: row.orders.wrapping_add(more), ..row };
        assert_ne!(row.orders, u32::MAX, "the second must have been ordered");
        bed.poke(2, Row::Stock(item), None, Some(&row.encode()));
    }
    assert_eq!(wrong(&bed.findings(testimony.clone())), ["stocks"]);
    [3, 4].into_iter().zip(&stocks).for_each(|(item, row)| bed.poke(2, Row::Stock(item), None, Some(row)));
    // Bad credit that does not show: of a customer who has paid in the run.
    let payer = (1..=SMALL.customers)
        .find(|c| Customer::read(&bed.row(2, Row::Customer(1, *c), None).unwrap()).unwrap().payments > 1);
    let payer = Row::Customer(1, payer.unwrap());
    let before = bed.row(2, payer, None).unwrap();
    let row = Customer { credit: b"BC", data: b"nothing of payments", ..Customer::read(&before).unwrap() };
    bed.poke(2, payer, None, Some(&row.encode()));
    assert_eq!(wrong(&bed.findings(testimony.clone())), ["customer_counts"]);
    bed.poke(2, payer, None, Some(&before));

    // What was answered and what is there are held against each other too.
    let rolled_back = bed.by_kind[Kind::NewOrder as usize].aborted;
    for aborted in [rolled_back + 1, rolled_back - 1] {
        // One that had no reason to, and one that had and did not.
        let counts = &mut bed.by_kind[Kind::NewOrder as usize];
        (counts.aborted, counts.committed) = (aborted, counts.committed + rolled_back - aborted);
        assert!(wrong(&bed.findings(testimony.clone())).contains(&"rollbacks"), "{aborted} {rolled_back}");
        let counts = &mut bed.by_kind[Kind::NewOrder as usize];
        (counts.aborted, counts.committed) = (rolled_back, counts.committed + aborted - rolled_back);
    }
    for (kind, status, text) in [
        (Kind::NewOrder, OutcomeStatus::Aborted(Abort::Panic), UNUSED_ITEM),
        (Kind::NewOrder, OutcomeStatus::Aborted(Abort::Logic), "ERR"),
        (Kind::Payment, OutcomeStatus::Aborted(Abort::Logic), UNUSED_ITEM),
    ] {
        let mut reply = Vec::new();
        ordain_model::Writer(&mut reply).error(text);
        let mut source = Clients::new(&bed.workload, 1, 0, 1);
        source.heard(kind as u8, status, &reply);
        let told = vec![testimony[0].clone(), source.testimony()];
        // A panic is never a reason, whatever it says.
        assert_eq!(wrong(&bed.findings(told)), ["answers"], "{kind:?} {text}");
    }
    for (kind, name) in [(Kind::NewOrder, "orders"), (Kind::Payment, "history")] {
        bed.by_kind[kind as usize].committed += 1;
        assert_eq!(wrong(&bed.findings(testimony.clone())), [name]);
        bed.by_kind[kind as usize].committed -= 1;
        failed.insert(name);
    }
    for kind in [Kind::Payment, Kind::OrderStatus] {
        bed.by_kind[kind as usize].restarts += 1;
        assert_eq!(wrong(&bed.findings(testimony.clone())), ["no_restarts_by_name"]);
        bed.by_kind[kind as usize].restarts -= 1;
        failed.insert("no_restarts_by_name");
    }
    let silence = wrong(&bed.findings(Vec::new()));
    assert_eq!(silence, ["order_lines", "payments", "deliveries", "rollbacks"]);
    assert_eq!(wrong(&bed.findings(vec![testimony[0].clone(), vec![1]])), ["answers"]);
    failed.extend(silence);
    failed.extend(["answers", "digest"]);
    let all: std::collections::BTreeSet<_> =
        bed.findings(testimony).iter().map(|finding| finding.name).collect();
    assert_eq!(failed, all);
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
