//! The driver against servers on loopback: a node of ours inside this process, and fakes that misbehave.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_engines::registry::Engine;
use ordain_model::OutcomeStatus;
use ordain_node::serve::{Node, ServeConfig};
use ordain_resp::client::{Reply, ReplyReader};
use ordain_workload::Counts;
use ordain_workload::audit::{Audited, Numbers};
use ordain_workload::{append, bank, micro, tpcc, ycsb};

use super::*;

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn node(password: Option<&str>) -> Node {
    let password = password.map(str::to_owned);
    let config = ServeConfig { password, ..ServeConfig::on_loopback(Engine::default()) };
    Node::start(&config).unwrap()
}

fn setup(target: Target, form: FormName) -> RespSetup {
    RespSetup {
        target,
        form,
        populations: 2,
        connections: 5,
        pipeline: 4,
        rate: None,
        seed: 7,
        length: Length::Txns(2_000),
        audits: Vec::new(),
        patience: Duration::from_secs(20),
        flush: false,
    }
}

fn small_bank() -> bank::Bank {
    let parameters = bank::Parameters { accounts: 500, balance: 100, amount_max: 90, ..Default::default() };
    bank::Bank::new(parameters).unwrap()
}

fn small_ycsb() -> ycsb::Ycsb {
    ycsb::Ycsb::new(ycsb::Parameters { records: 1_000, read_only: 0.3, ..Default::default() }).unwrap()
}

/// Asserts what any run that went well has in common.
fn assert_well(measured: &RespMeasured, txns: u64) {
    assert_eq!(measured.failure, None);
    assert_eq!((measured.book.unanswered, measured.book.behind), (0, 0));
    assert_eq!(measured.seen.by_kind.iter().map(all).sum::<u64>(), txns);
    let committed: u64 = measured.book.kinds.iter().map(|kind| kind.counts.committed).sum();
    assert_eq!(measured.book.kinds.iter().map(|kind| kind.latency_us.len()).sum::<u64>(), committed);
    assert_eq!(measured.book.timeline.iter().sum::<u64>(), committed);
    assert!(measured.book.seconds > 0.0 && measured.client_cpu > Duration::ZERO);
    for Finding { name, wrong, .. } in &measured.findings {
        assert_eq!(*wrong, None, "{name}");
    }
    assert!(!measured.findings.is_empty());
}

fn all(counts: &Counts) -> u64 {
    counts.committed + counts.aborted + counts.restarted_out + counts.turned_away
}

#[test]
fn native_procedures_are_loaded_run_and_audited_over_sockets() {
    let node = node(Some("secret"));
    let mut target = Target::at(node.resp);
    target.password = Some("secret".into());
    for workload in [&small_bank() as &dyn Workload, &small_ycsb()] {
        let setup = RespSetup { flush: true, ..setup(target.clone(), FormName::Native) };
        let measured = run(&setup, workload, &Progress::silent()).unwrap();
        assert_well(&measured, 2_000);
        assert!(measured.server.is_ordain() && !measured.server_cpu.is_empty());
        assert!(measured.findings.iter().any(|finding| finding.name == "digest"));
    }
    // Data that are there are not deleted unasked, and a wrong password is an error.
    let refused =
        run(&setup(target.clone(), FormName::Native), &small_bank(), &Progress::silent()).unwrap_err();
    assert!(format!("{refused:#}").contains("holds 1000 keys"), "{refused:#}");
    target.password = Some("guess".into());
    let refused = run(&setup(target, FormName::Native), &small_bank(), &Progress::silent()).unwrap_err();
    assert!(format!("{refused:#}").contains("refuses the password"), "{refused:#}");
    node.handle().stop();
    node.wait().unwrap();
}

#[test]
fn every_form_there_is_passes_the_checks() {
    let node = node(None);
    let [ycsb, bank] = [&small_ycsb() as &dyn Workload, &small_bank()];
    let regions = micro::Regions { records: 2_000, read_only: 0.5, ..Default::default() };
    let regions = micro::Micro::regions(regions).unwrap();
    let calvin = micro::Calvin {
        records_per_partition: 2_000,
        contention_index: 0.1,
        constraint_fails: Some(0.2),
        ..Default::default()
    };
    let calvin = micro::Micro::calvin(calvin).unwrap();
    let append = append::Append::new(append::Parameters { fails: 0.0, ..Default::default() }).unwrap();
    let scale = tpcc::Scale { districts: 2, customers: 60, items: 200, orders: 60, undelivered: 20 };
    let tpcc = tpcc::Parameters { warehouses: 2, scale, ..Default::default() };
    let tpcc = tpcc::Tpcc::new(tpcc).unwrap();
    let failing = append::Append::new(append::Parameters::default()).unwrap();
    for (workload, form) in [
        (ycsb, FormName::Multi),
        (ycsb, FormName::Script),
        (bank, FormName::Script),
        (&regions, FormName::Multi),
        (&regions, FormName::Script),
        (&append, FormName::Multi),
        (&append, FormName::Script),
        (&calvin, FormName::Script),
        (&calvin, FormName::Native),
        (&failing, FormName::Native),
        (&tpcc, FormName::Native),
    ] {
        let setup = RespSetup { flush: true, ..setup(Target::at(node.resp), form) };
        let measured = run(&setup, workload, &Progress::silent()).unwrap();
        assert_well(&measured, 2_000);
    }
    // What cannot be done is refused by name.
    for (workload, form, part) in [
        (bank, FormName::Multi, "--form script"),
        (&failing, FormName::Script, "--fails"),
        (&calvin, FormName::Multi, "a block cannot check a constraint"),
        (&tpcc, FormName::Script, "cannot be declared"),
        (&tpcc, FormName::Multi, "no form multi"),
    ] {
        let setup = RespSetup { flush: true, ..setup(Target::at(node.resp), form) };
        let refused = format!("{:#}", run(&setup, workload, &Progress::silent()).unwrap_err());
        assert!(refused.contains(part), "{refused}");
    }
    node.handle().stop();
    node.wait().unwrap();
}

#[test]
fn what_another_client_does_to_the_data_is_found() {
    let node = node(None);
    let target = Target::at(node.resp);
    let workload = small_ycsb();
    let setup = RespSetup { flush: true, ..setup(target.clone(), FormName::Multi) };
    let mut link = Link::open(&target, Protocol::Resp2).unwrap();
    let server = ServerInfo::ask(&mut link).unwrap();
    run(&setup, &workload, &Progress::silent()).unwrap();
    let form = forms::prepare(FormName::Multi, &workload, &server, &mut link).unwrap();
    let found = |link: &mut Link| {
        let audits = form.audit(&workload.audits(), link).unwrap();
        Audited::<Numbers>::read(&audits[0]).unwrap().found
    };
    let whole = found(&mut link);
    assert_eq!((whole.records, whole.damaged), (1_000, 0));
    let reply = link.ask(&["RANDOMKEY"]).unwrap();
    let key = Datum::first(&reply).as_bytes().unwrap();
    link.ask(&[&b"HSET"[..], key, b"p", b"something else"]).unwrap();
    link.ask(&["SET", "stray", "1"]).unwrap();
    let damaged = found(&mut link);
    assert_eq!((damaged.records, damaged.damaged), (1_001, 2));
    node.handle().stop();
    node.wait().unwrap();
}

#[test]
fn an_open_loop_asks_at_its_rate() {
    let node = node(None);
    let length = Length::Txns(400);
    let setup = RespSetup { rate: Some(4_000.0), length, ..setup(Target::at(node.resp), FormName::Native) };
    let measured = run(&setup, &small_bank(), &Progress::silent()).unwrap();
    assert_well(&measured, 400);
    // The last of 200 requests at 2,000 a second in each population is due about 100 ms after the first.
    assert!(measured.book.seconds > 0.05, "{}", measured.book.seconds);
    // A thread of clients without a share of the transactions has one of the loading all the same.
    let setup = RespSetup { length: Length::Txns(1), flush: true, ..setup };
    assert_well(&run(&setup, &small_bank(), &Progress::silent()).unwrap(), 1);
    node.handle().stop();
    node.wait().unwrap();
}

/// A server that answers what a driver asks for, until it has been asked for so many transactions.
struct Fake {
    address: SocketAddr,
    asked: Arc<AtomicU64>,
    /// Transactions that were turned away, and not asked for again.
    turned: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Clone, Copy)]
enum End {
    /// Closes all connections.
    Close,
    /// Sends something that is no reply.
    Babble,
    /// Refuses a transaction.
    Refuse,
    /// Sends no more.
    FallSilent,
    /// Turns each transaction away, but not when it is asked for again.
    TurnAway,
    /// Turns all away.
    TurnAllAway,
}

impl Fake {
    fn start(after: u64, end: End) -> Fake {
        let listener = TcpListener::bind(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let turned = Arc::<Mutex<BTreeSet<String>>>::default();
        let (count, away) = (asked.clone(), turned.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (count, away) = (count.clone(), away.clone());
                std::thread::spawn(move || Fake::serve(stream, &count, &away, after, end));
            }
        });
        Fake { address, asked, turned }
    }

    fn serve(mut stream: TcpStream, asked: &AtomicU64, away: &Mutex<BTreeSet<String>>, after: u64, end: End) {
        let mut reader = ReplyReader::default();
        // A command is an array of bulks, just like a reply.
        while let Ok(command) = reader.read_from(&mut stream) {
            let Some([Reply::Bulk(name), ..]) = command.composite() else { panic!("{command:?}") };
            let reply: &[u8] = match &name[..] {
                b"INFO" => b"$20\r\nserver_name:ordain\r\n\r\n",
                b"DBSIZE" => b":0\r\n",
                b"FCALL" if asked.fetch_add(1, Ordering::Relaxed) >= after => match end {
                    End::Close => return,
                    End::Babble => b"HTTP/1.1 418 I'm a teapot\r\n",
                    End::Refuse => b"-ERR unknown command 'FCALL'\r\n",
                    End::FallSilent => continue,
                    End::TurnAway if is_known(away, &command) => b"+OK\r\n",
                    End::TurnAway | End::TurnAllAway => b"-BUSY it met others: retry later\r\n",
                },
                _ => b"+OK\r\n",
            };
            if stream.write_all(reply).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_server_that_dies_in_the_middle_leaves_what_was_measured_and_the_reason() {
    for (end, reason) in [
        (End::Close, "the server has"),
        (End::Babble, "not RESP"),
        (End::Refuse, "unknown command"),
        (End::FallSilent, "answered nothing"),
    ] {
        let fake = Fake::start(500, end);
        let setup = RespSetup {
            patience: Duration::from_millis(200),
            length: Length::Time { warmup: Duration::ZERO, measure: Duration::from_secs(60) },
            ..setup(Target::at(fake.address), FormName::Native)
        };
        let begun = Instant::now();
        let measured = run(&setup, &small_bank(), &Progress::silent()).unwrap();
        let failure = measured.failure.unwrap();
        assert!(failure.contains(reason), "{failure}");
        assert!(begun.elapsed() < Duration::from_secs(30), "the run ends early");
        assert!(measured.findings.is_empty());
        let committed: u64 = measured.seen.by_kind.iter().map(|counts| counts.committed).sum();
        // 500 accounts are loaded by 64 at most at a time.
        assert!((300..=500).contains(&committed), "{committed}");
        assert!(fake.asked.load(Ordering::Relaxed) > 500);
    }
}

/// Takes a transaction out of those that were turned away; true if it was one. If not, it is one now.
fn is_known(away: &Mutex<BTreeSet<String>>, command: &Reply) -> bool {
    let text = command.to_string();
    let mut away = away.lock().unwrap();
    if away.remove(&text) {
        return true;
    }
    away.insert(text);
    false
}

/// All that was turned away while loading is taken in the end, and no more is turned away than the run itself and what is asked
/// at its end.
#[test]
fn what_is_turned_away_while_loading_is_asked_for_again() {
    let loads = |end| {
        let fake = Fake::start(3, end);
        let setup =
            RespSetup { length: Length::Txns(1), ..setup(Target::at(fake.address), FormName::Native) };
        let failure = run(&setup, &small_bank(), &Progress::silent()).unwrap().failure;
        let left = fake.turned.lock().unwrap().len();
        (failure.unwrap_or_default(), fake.asked.load(Ordering::Relaxed), left)
    };
    let (failure, asked, left) = loads(End::TurnAway);
    assert!(!failure.contains("did not take the data"), "{failure}");
    assert!(asked > 2 * left as u64 && left <= 2, "{asked}, {left}");
    let (failure, ..) = loads(End::TurnAllAway);
    assert!(failure.contains("did not take the data: Busy"), "{failure}");
}

#[test]
fn a_server_that_dies_while_loading_ends_the_run() {
    let fake = Fake::start(3, End::Close);
    let measured =
        run(&setup(Target::at(fake.address), FormName::Native), &small_bank(), &Progress::silent()).unwrap();
    assert!(measured.failure.is_some_and(|failure| failure.contains("the server has")));
    assert_eq!(measured.book.seconds, 0.0);
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    let target: Target = "redis://127.0.0.1:1/3".parse().unwrap();
    let with = |change: &dyn Fn(&mut RespSetup)| {
        let mut setup = setup(target.clone(), FormName::Multi);
        change(&mut setup);
        format!("{:#}", run(&setup, &small_bank(), &Progress::silent()).unwrap_err())
    };
    assert!(with(&|setup| setup.populations = 0).contains("make no sense"));
    assert!(with(&|setup| setup.connections = 1).contains("make no sense"));
    assert!(with(&|setup| setup.pipeline = 0).contains("make no sense"));
    assert!(with(&|setup| setup.form = FormName::Native).contains("database 0"));
    assert!(with(&|_| ()).contains("is a server running there"));
}

#[test]
fn an_answer_that_is_no_commit_is_counted_as_what_it_is() {
    let mut counts = Counts::default();
    for text in ["NOFUNDS x", "BUSY x", "TXNABORT the transaction's key set"] {
        counts.count(forms::outcome_of(text.as_bytes()).unwrap());
    }
    counts.count(OutcomeStatus::Committed);
    assert_eq!(
        counts,
        Counts { committed: 1, aborted: 1, restarted_out: 1, turned_away: 1, unknown: 0, restarts: 0 }
    );
}
