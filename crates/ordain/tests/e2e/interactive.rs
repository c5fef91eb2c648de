//! Interactive transactions under locks over real sockets: whoever holds a lock and goes away, however it goes, lets others go
//! on within the limit that the guide names.

use std::time::{Duration, Instant};

use crate::faults::grid::Grid;
use crate::support::{Client, Expect, Reply};

/// The longest time for which locks are held for a client that sends nothing (docs/guide.md, "With locks").
const IDLE: Duration = Duration::from_secs(5);
/// What a machine that is busy with other tests may take beside that.
const SLACK: Duration = Duration::from_secs(10);

/// Writes a key until that is taken; answers how long it took.
fn write_at_last(client: &mut Client, key: &str) -> Duration {
    let begun = Instant::now();
    loop {
        match client.run(&format!("SET {key} theirs")) {
            Reply::Error(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(text.starts_with("BUSY"), "{text}");
                assert!(begun.elapsed() < IDLE + SLACK, "the key is still locked");
            }
            reply => {
                assert_eq!(reply, Reply::ok());
                return begun.elapsed();
            }
        }
    }
}

fn hold(client: &mut Client, key: &str) {
    assert_eq!(client.run("TXN.BEGIN"), Reply::ok());
    assert_eq!(client.run(&format!("SET {key} mine")), Reply::ok());
    assert_eq!(client.run(&format!("GET {key}")).text(), "mine");
}

fn lets_go(engine: &str) {
    let mut grid = Grid::start(2, 1, &format!("engine = \"{engine}\"\n"));
    let (near, far) = (grid.key_in(1, "near"), grid.key_in(0, "far"));
    let mut other = grid.client(1);

    // A connection that is closed.
    let mut holder = grid.client(0);
    hold(&mut holder, &near);
    drop(holder);
    assert!(write_at_last(&mut other, &near) < IDLE, "a closed connection holds nothing");

    // A client that waits for ever: the key is held, and then it is not.
    let mut holder = grid.client(0);
    hold(&mut holder, &near);
    let waited = write_at_last(&mut other, &near);
    assert!(waited > Duration::from_secs(1), "{waited:?}: nothing was locked");
    let error = holder.run(&format!("GET {near}"));
    assert!(error.error().starts_with("TXNABORT the transaction was open"), "{error:?}");
    assert!(holder.run("TXN.COMMIT").error().starts_with("TXNABORT"));

    // One that commits over both partitions.
    hold(&mut holder, &near);
    assert_eq!(holder.run(&format!("SET {far} mine")), Reply::ok());
    assert_eq!(holder.run("TXN.COMMIT"), Reply::ok());
    assert_eq!(other.run(&format!("MGET {near} {far}")).items().len(), 2);
    assert_eq!(other.run(&format!("GET {far}")).text(), "mine");

    // One whose node is killed: the other node's keys are free again.
    hold(&mut holder, &near);
    grid.kill(0);
    write_at_last(&mut other, &near);
    assert_eq!(other.run(&format!("GET {near}")).text(), "theirs");
    grid.restart(0);
    grid.await_ready();
    assert_eq!(grid.client(0).run(&format!("GET {far}")).text(), "mine");
    grid.stop();
}

#[test]
fn no_wait_lets_go_of_what_a_client_holds_that_goes_away() {
    lets_go("no-wait");
}

#[test]
fn wait_die_lets_go_of_what_a_client_holds_that_goes_away() {
    lets_go("wait-die");
}
