//! Native procedures by FCALL: alone, pipelined, in blocks, in interactive transactions, and those whose keys have to
//! be found first.

use ordain_conformance::reference::Server;

const REFUSED: &str = "-NOFUNDS too little is left\n";

#[test]
fn alone_pipelined_and_in_another_database() {
    let mut server = Server::new(1);
    server.ask(0, &["SET", "till", "10"]);
    assert_eq!(server.ask(0, &["FCALL", "till.take", "1", "till", "3"]), ":7\n");
    for amount in ["4", "4", "3"] {
        server.command(0, &[b"FCALL", b"till.take", b"1", b"till", amount.as_bytes()]);
    }
    server.command(0, &[b"GET", b"till"]);
    server.settle();
    assert_eq!(server.take(0), format!(":3\n{REFUSED}:0\n$1\n0\n"));
    server.ask(0, &["SELECT", "5"]);
    server.ask(0, &["SET", "till", "2"]);
    assert_eq!(server.ask(0, &["FCALL", "till.take", "1", "till", "2"]), ":0\n");
}

#[test]
fn what_is_refused_does_nothing() {
    let mut server = Server::new(1);
    server.ask(0, &["SET", "till", "10"]);
    let before = server.state.digest();
    for (words, reply) in [
        (&["FCALL", "till.take", "1", "till"][..], "-ERR syntax error\n"),
        (
            &["FCALL", "till.take", "3", "till", "1"],
            "-ERR Number of keys can't be greater than number of args\n",
        ),
        (
            &["FCALL_RO", "till.take", "1", "till", "1"],
            "-ERR Can not execute a script with write flag using *_ro command.\n",
        ),
        (&["FCALL", "till.hidden", "1", "till", "1"], "-ERR Function not found\n"),
        (&["FCALL", "set", "1", "till", "1"], "-ERR Function not found\n"),
    ] {
        assert_eq!(server.ask(0, words), reply, "{words:?}");
    }
    assert_eq!(server.state.digest(), before);
}

#[test]
fn in_a_block_it_is_part_of_the_transaction() {
    let mut server = Server::new(1);
    server.ask(0, &["SET", "till", "10"]);
    server.ask(0, &["MULTI"]);
    assert_eq!(server.ask(0, &["FCALL", "till.take", "1", "till", "3"]), "+QUEUED\n");
    assert_eq!(server.ask(0, &["INCR", "till"]), "+QUEUED\n");
    assert_eq!(server.ask(0, &["EXEC"]), "*2\n:7\n:8\n");
    // Its abort is the whole block's.
    server.ask(0, &["MULTI"]);
    server.ask(0, &["INCR", "till"]);
    server.ask(0, &["FCALL", "till.take", "1", "till", "100"]);
    assert!(server.ask(0, &["EXEC"]).starts_with('-'));
    assert_eq!(server.ask(0, &["GET", "till"]), "$1\n8\n");
    // A call that is refused is found out when the block runs, as in Redis; the others of the block run.
    server.ask(0, &["MULTI"]);
    assert_eq!(server.ask(0, &["FCALL", "till.take", "x", "till", "1"]), "+QUEUED\n");
    server.ask(0, &["INCR", "till"]);
    assert_eq!(server.ask(0, &["EXEC"]), "*2\n-ERR Bad number of keys provided\n:9\n");
}

#[test]
fn between_begin_and_commit_it_runs_at_once() {
    let mut server = Server::new(1);
    server.ask(0, &["SET", "till", "10"]);
    server.ask(0, &["TXN.BEGIN"]);
    assert_eq!(server.ask(0, &["FCALL", "till.take", "1", "till", "3"]), ":7\n");
    assert!(server.ask(0, &["FCALL", "till.take", "1", "till", "30"]).starts_with('-'));
    assert_eq!(server.ask(0, &["GET", "till"]), "$1\n7\n");
    assert_eq!(server.ask(0, &["TXN.COMMIT"]), "+OK\n");
    assert_eq!(server.ask(0, &["GET", "till"]), "$1\n7\n");
}

#[test]
fn keys_that_are_found_first() {
    let mut server = Server::new(1);
    server.ask(0, &["MSET", "pointer", "target", "target", "here"]);
    assert_eq!(server.ask(0, &["FCALL", "till.follow", "1", "pointer"]), "$4\nhere\n");
    assert_eq!(server.ask(0, &["FCALL", "till.follow", "0"]), "-ERR syntax error\n");
    assert!(
        server
            .ask(0, &["FCALL_RO", "till.follow", "1", "pointer"])
            .starts_with("-ERR a procedure that finds")
    );
    server.ask(0, &["TXN.BEGIN"]);
    assert!(server.ask(0, &["FCALL", "till.follow", "1", "pointer"]).starts_with("-ERR"));
    server.ask(0, &["TXN.ABORT"]);
    server.ask(0, &["MULTI"]);
    assert_eq!(
        server.ask(0, &["FCALL", "till.follow", "1", "pointer"]),
        "-ERR 'till.follow' finds its keys while it runs and cannot be part of a MULTI block\n"
    );
    assert!(server.ask(0, &["EXEC"]).starts_with("-EXECABORT"));
}
