//! What is drawn: shares, round trips, parameters.

use super::*;

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
