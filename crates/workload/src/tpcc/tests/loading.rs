//! Loading: the population is the specification's, and the same for any loader.

use super::*;

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

/// The executor checks that blind writes do not depend on what they find.
#[test]
fn loading_writes_over_what_there_is() {
    let mut bed = Bed::loaded(parameters(2));
    let loaded = bed.executor.digest();
    bed.load(8, 1);
    assert_ne!(bed.executor.digest(), loaded);
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
            Some(Row::Names(..)) => by_name += rows::customers_of_name(bytes).len(),
            _ => {}
        }
        if let Some((_, suffix)) = ordain_model::split_child_key(key).filter(|_| db != DB)
            && let Some(Child::Order(number)) = Child::read(suffix)
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
        .map(|i| rows::Item::read(&bed.row(1, Row::Item(i), None).unwrap()).unwrap().price_cents)
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
