//! The transactions: by hand, one of each; and thousands in flight together, so that reconnaissances go stale.

use super::*;

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
    let child = |bed: &Bed, child| bed.row(w, Row::District(d), Some(child)).unwrap();
    let order = Order::read(&child(&bed, Child::Order(number))).unwrap();
    assert_eq!((order.customer, order.carrier, order.lines, order.all_local), (5, 0, 3, 0));
    let bytes = child(&bed, Child::OrderLine(number, 2));
    let second = OrderLine::read(&bytes).unwrap();
    let item = bed.row(w, Row::Item(2), None).unwrap();
    assert_eq!(second.amount_cents, 10 * rows::Item::read(&item).unwrap().price_cents);
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
    let history = bed.row(w, Row::Customer(d, 5), Some(Child::History(2))).unwrap();
    let history = History::read(&history).unwrap();
    assert_eq!((history.warehouse, history.district, history.amount_cents), (2, 1, 1_234));
    let names = bed.row(2, Row::Warehouse, None).unwrap();
    assert!(history.data.starts_with(Warehouse::read(&names).unwrap().name));

    // Deliveries until its turn has come; then there is nothing left to deliver here.
    let call = Transaction::Delivery(DeliveryCall { warehouse: w, districts: SMALL.districts, carrier: 9 });
    for _ in 0..SMALL.undelivered + 2 {
        bed.call(&call);
    }
    let order = Order::read(&child(&bed, Child::Order(number))).unwrap();
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
        .map(|line| OrderLine::read(&child(&bed, Child::OrderLine(number, line))).unwrap().amount_cents)
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

/// An order between the look and the real transaction, and another between that and the next attempt.
#[test]
fn a_stock_level_that_starts_over_counts_the_orders_as_it_found_them() {
    let scale = Scale { districts: 1, customers: 4, items: 40, orders: 0, undelivered: 0 };
    let mut bed = Bed::loaded(Parameters { scale, ..Parameters::default() });
    let order = |bed: &mut Bed, item| {
        let lines = vec![Line { item, supply_warehouse: 1, quantity: 1 }];
        let call = NewOrderCall { warehouse: 1, district: 1, customer: 1, lines };
        assert_eq!(bed.call(&Transaction::NewOrder(call)).status, OutcomeStatus::Committed);
    };
    order(&mut bed, 1);
    let call = Transaction::StockLevel(StockLevelCall { warehouse: 1, district: 1, threshold: 255 });
    let args = args_of(|args| call.write_args(&bed.workload.prefixes, args));
    let mut flight = bed.take_off(0, Made { procedure: STOCK_LEVEL, kind: 4 }, args);
    assert!(matches!(flight.step, Reconnaissance::Ask(stock_level::PEEK, _)));
    bed.step(&mut flight);
    // One that sells the same again disturbs nothing; one that sells something else does.
    order(&mut bed, 1);
    order(&mut bed, 2);
    assert_eq!(bed.step(&mut flight), None);
    assert_eq!(flight.restarts, 1);
    order(&mut bed, 3);
    let reply = bed.step(&mut flight).map(|result| result.reply);
    assert_eq!(reply.map(|reply| Datum::first(&reply).as_int()), Some(Some(2)));
    // Twenty orders later, only what they sold counts.
    (0..20).for_each(|_| order(&mut bed, 9));
    assert_eq!(Datum::first(&bed.call(&call).reply), Datum::Int(1));
}

/// Deliveries come between, each time as many as it names customers of a district.
#[test]
fn a_delivery_that_starts_over_names_twice_as_many_customers() {
    let scale = Scale { districts: 2, customers: 20, items: 40, orders: 20, undelivered: 20 };
    let mut bed = Bed::loaded(Parameters { scale, ..Parameters::default() });
    let call = Transaction::Delivery(DeliveryCall { warehouse: 1, districts: 2, carrier: 3 });
    let args = args_of(|args| call.write_args(&bed.workload.prefixes, args));
    let mut flight = bed.take_off(0, Made { procedure: DELIVERY, kind: 3 }, args);
    bed.step(&mut flight);
    let named = |flight: &Flight| match &flight.step {
        // All but the keys of two districts and the packed argument.
        Reconnaissance::Ready(args) => Args::parse(args).unwrap().len() - 3,
        other => panic!("{other:?}"),
    };
    for expected in [2, 4, 8] {
        assert_eq!(named(&flight), expected);
        (0..expected / 2).for_each(|_| _ = bed.call(&call));
        assert_eq!(bed.step(&mut flight), None);
    }
    assert_eq!(named(&flight), 16);
    let reply = bed.step(&mut flight).unwrap().reply;
    let (Datum::Array(2), rest) = Datum::split(&reply).unwrap() else { panic!("{reply:?}") };
    assert_eq!(Datum::first(rest), Datum::Int(8));
    assert_sound(
        &bed.findings(Vec::new()).into_iter().filter(|f| f.name.starts_with("condition")).collect::<Vec<_>>(),
    );
}
