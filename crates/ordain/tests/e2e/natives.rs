//! Native procedures over a socket, and the benchmark driver that lives on them.

use std::path::Path;
use std::time::Duration;

use ordain_lab::sockets::{
    self, FormName, Launch, Length, Ours, Progress, RespMeasured, RespSetup, Server as Child, Target,
};
use ordain_workload::bank::{Bank, Parameters};

use crate::support::{Client, Expect, Reply, Server, serve_dir};

#[test]
fn a_transfer_is_a_transaction_that_survives() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    let mut client = server.client();
    let mut fcall = |name: &str, n: u64| client.run(&format!("FCALL {name} 2 b1 b2 {n}"));
    assert_eq!(fcall("bank.open", 100), Reply::ok());
    assert_eq!(fcall("bank.transfer", 30), Reply::Int(70));
    assert_eq!(fcall("bank.transfer", 71).error(), "NOFUNDS not enough in the account");
    assert!(fcall("bank.none", 1).error().starts_with("ERR Function not found"));
    // In a block with ordinary commands: one transaction, which one abort undoes.
    assert_eq!(client.run("MULTI"), Reply::ok());
    client.run("INCR transfers");
    client.run("FCALL bank.transfer 2 b1 b2 20");
    assert_eq!(client.run("EXEC"), Reply::Array(vec![Reply::Int(1), Reply::Int(50)]));
    client.run("MULTI");
    client.run("INCR transfers");
    client.run("FCALL bank.transfer 2 b1 b2 51");
    client.run("EXEC").error();
    assert_eq!(client.run("GET transfers").text(), "1");
    assert_eq!(client.run("MGET b1 b2"), Reply::Array(["50", "150"].map(|n| Reply::Bulk(n.into())).to_vec()));
    let refused = client.run("FCALL bank.transfer 2 b1 b2 much");
    assert!(refused.error().ends_with("in decimal digits, not 'much'"), "{refused:?}");
    server.kill();

    let server = Server::start(serve_dir(dir.path(), ["--threads", "1"]));
    assert_eq!(server.client().run("FCALL_RO bank.balances 1 b2"), Reply::Int(150));
    let refused = server.client().run("FCALL_RO bank.transfer 2 b1 b2 1");
    assert!(refused.error().starts_with("ERR Can not execute"));
    server.stop();
}

fn drive(target: &Target, length: Length, meanwhile: impl FnOnce() + Send) -> RespMeasured {
    let bank = Bank::new(Parameters { accounts: 1_000, ..Parameters::default() }).unwrap();
    let setup = RespSetup {
        target: target.clone(),
        form: FormName::Native,
        populations: 1,
        connections: 4,
        pipeline: 8,
        rate: None,
        seed: 3,
        length,
        audits: Vec::new(),
        patience: Duration::from_secs(60),
        flush: false,
    };
    std::thread::scope(|scope| {
        scope.spawn(meanwhile);
        sockets::run(&setup, &bank, &Progress::silent()).unwrap()
    })
}

fn launch() -> Launch {
    Launch {
        ours: Ours::new(ordain_engines::registry::Engine::default()),
        threads: 1,
        durability: Some("os".into()),
        place: None,
    }
}

#[test]
fn a_child_is_started_driven_and_stopped() {
    let server = Child::start(Path::new(env!("CARGO_BIN_EXE_ordain")), &launch()).unwrap();
    let measured = drive(server.target(), Length::Txns(3_000), || ());
    assert_eq!(measured.failure, None);
    assert!(measured.findings.iter().all(|finding| finding.wrong.is_none()), "{:?}", measured.findings);
    assert!(measured.server_cpu.keys().any(|name| name.starts_with("ordain-")), "{:?}", measured.server_cpu);
    assert!(measured.server_peak_rss_bytes > 1 << 20);
    server.stop().unwrap();
    // What it does not know is told in its own words.
    let unknown = Launch { durability: Some("no-such".into()), ..launch() };
    let error = Child::start(Path::new(env!("CARGO_BIN_EXE_ordain")), &unknown).unwrap_err();
    assert!(format!("{error:#}").contains("no-such"), "{error:#}");
}

#[test]
fn a_child_that_is_killed_in_the_middle_ends_the_run() {
    let server = Child::start(Path::new(env!("CARGO_BIN_EXE_ordain")), &launch()).unwrap();
    let target = server.target().clone();
    let forever = Length::Time { warmup: Duration::ZERO, measure: Duration::from_secs(600) };
    let measured = drive(&target.clone(), forever, move || {
        // When all accounts are open, the run begins.
        let mut client = Client::connect(target.resolve().unwrap()).unwrap();
        while client.run("DBSIZE").int() < 1_000 {}
        drop(server);
    });
    assert!(measured.failure.is_some_and(|failure| failure.contains("the server has")));
    assert!(measured.findings.is_empty());
}
