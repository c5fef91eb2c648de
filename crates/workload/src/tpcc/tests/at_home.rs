//! Warehouses that are at home in regions: who uses and audits which, and that the audit by name finds what that of the table does.

use super::*;

fn two_regions() -> Parameters {
    Parameters { partitions: 2, at_home: true, remote: Remote::Share(0.4), ..parameters(5) }
}

#[test]
fn clients_load_use_and_audit_the_warehouses_of_their_region() {
    let workload = Tpcc::new(two_regions()).unwrap();
    let mut loaded = [[0u32; 5]; 2];
    let mut audited = Vec::new();
    for number in 0..4 {
        let region = number / 2;
        let mut clients = Clients::new(&workload, 7, number, 4);
        let first_key = |clients: &Clients| {
            let bytes = args_of(|args| clients.write_args(args));
            let args = Args::parse(&bytes).unwrap();
            Named::read(args.get(0).unwrap()).unwrap().warehouse
        };
        while clients.load().is_some() {
            loaded[region][first_key(&clients) as usize - 1] += 1;
        }
        for _ in 0..300 {
            let made = clients.next();
            let is_multi = usize::from(made.kind) >= Kind::ALL.len();
            let (home, other) = match clients.made().unwrap() {
                Transaction::NewOrder(call) => {
                    let mut others = call.lines.iter().map(|line| line.supply_warehouse);
                    (call.warehouse, others.find(|other| *other != call.warehouse))
                }
                Transaction::Payment(call) => {
                    let customer = call.customer_warehouse;
                    (call.warehouse, Some(customer).filter(|other| *other != call.warehouse))
                }
                Transaction::OrderStatus(call) => (call.warehouse, None),
                Transaction::Delivery(call) => (call.warehouse, None),
                Transaction::StockLevel(call) => (call.warehouse, None),
            };
            assert_eq!(home as usize % 2, region);
            assert_eq!(other.map(|other| other as usize % 2), is_multi.then_some(1 - region));
        }
        for (class, is_multi) in [(0, false), (MULTI_CLASS, true)] {
            for _ in 0..100 {
                assert_eq!(usize::from(clients.next_of(class).kind) >= Kind::ALL.len(), is_multi);
            }
        }
        while clients.audit().is_some() {
            audited.push((region, first_key(&clients)));
        }
    }
    // Warehouses 2 and 4 are of the first region.
    let is_loaded = |region: usize, warehouse: usize| loaded[region][warehouse - 1] > 0;
    assert!(
        (1..=5)
            .all(|warehouse| is_loaded(warehouse % 2, warehouse) && !is_loaded(1 - warehouse % 2, warehouse))
    );
    audited.sort_unstable();
    assert_eq!(audited, [(0, 2), (0, 4), (1, 1), (1, 3), (1, 5)]);
    let classes = workload.classes();
    assert!(classes.len() == 2 && (classes[MULTI_CLASS].at_most - 0.4 * 0.88).abs() < 1e-9, "{classes:?}");
    assert_eq!(Tpcc::new(parameters(5)).unwrap().classes(), []);
}

#[test]
fn the_audit_by_name_finds_what_that_of_the_table_does() {
    let mut bed = Bed::new(two_regions(), super::super::register);
    bed.load(7, 4);
    assert_sound(&bed.drive(3, 3_000, 8));
    assert!(bed.by_kind[5].committed > 300 && bed.by_kind[6].committed > 300, "{:?}", bed.by_kind);
    let rows = |bed: &mut Bed| {
        let mut sources: Vec<_> = (0..4).map(|number| bed.workload.source(7, number, 4)).collect();
        let audits = bed.audits_at_home(&mut sources);
        assert_eq!(audits.len(), 5);
        let results = Results { audits, ..Results::default() };
        crate::audit::of_parts::<audit::Rows>(&results).unwrap()
    };
    let whole = |bed: &mut Bed| {
        let reply = bed.run(audit::AUDIT, &encode::<&str>(&[])).reply;
        crate::audit::Audited::<audit::Rows>::read(&reply).unwrap().found
    };
    let (by_name, of_table) = (rows(&mut bed), whole(&mut bed));
    assert_eq!(by_name, of_table);
    // Damage shows in both.
    bed.poke(2, Row::Customer(1, 3), Some(Child::History(1)), None);
    bed.poke(3, Row::Stock(7), None, Some(b"short"));
    bed.poke(4, Row::District(2), Some(Child::OrderLine(2, 1)), None);
    let (by_name, of_table) = (rows(&mut bed), whole(&mut bed));
    assert_eq!(
        (by_name.totals, by_name.paid, by_name.ordered),
        (of_table.totals, of_table.paid, of_table.ordered)
    );
    let conditions = |rows: &BTreeMap<u8, audit::Wrong>| {
        rows.iter().map(|(n, wrong)| (*n, wrong.times)).collect::<Vec<_>>()
    };
    assert!(conditions(&by_name.wrong).len() >= 4, "{:?}", by_name.wrong);
    assert_eq!(conditions(&by_name.wrong), conditions(&of_table.wrong));
}

#[test]
fn nonsense_about_homes_is_refused_by_name() {
    let refused = |parameters: Parameters| Tpcc::new(parameters).unwrap_err().to_string();
    assert!(refused(Parameters { partitions: 1, ..two_regions() }).contains("two regions"));
    assert!(
        refused(Parameters { partitions: 6, ..two_regions() }).contains("5 warehouses at home in 6 regions")
    );
    assert!(
        refused(Parameters { remote: Remote::Standard, ..two_regions() }).contains("remote must be a share")
    );
    assert!(
        refused(Parameters { multi_region_clients: 1.5, ..two_regions() }).contains("multi_region_clients")
    );
}
