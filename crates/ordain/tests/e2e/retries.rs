//! Exactly once: a request that is sent again under its number, after the server was killed, takes effect once.

use crate::support::{Client, Expect, Reply, Server, command, serve_dir};

fn ask(client: &mut Client, request: u64, text: &str) -> Reply {
    assert_eq!(client.run("CLIENT SESSION 77"), Reply::ok());
    assert_eq!(client.run(&format!("CLIENT REQUEST {request}")), Reply::ok());
    client.run(text)
}

#[test]
fn a_request_sent_again_after_a_kill_takes_effect_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(serve_dir(dir.path(), ["--threads", "2"]));
    for request in 1..=10u64 {
        let expected = Reply::Int(request as i64);
        if request % 2 == 0 {
            assert_eq!(ask(&mut server.client(), request, "INCR counter"), expected);
        } else {
            // Nobody waits for the answer: the request was done, or it was not.
            let mut client = server.client();
            let words = [
                command(&["CLIENT", "SESSION", "77"]),
                command(&["CLIENT", "REQUEST", &request.to_string()]),
                command(&["INCR", "counter"]),
            ];
            client.send(&words.concat()).unwrap();
            assert_eq!((client.receive().unwrap(), client.receive().unwrap()), (Reply::ok(), Reply::ok()));
        }
        server.kill();
        server = Server::start(serve_dir(dir.path(), ["--threads", ["1", "2"][request as usize % 2]]));
        for _ in 0..2 {
            let again = ask(&mut server.client(), request, "INCR counter");
            assert_eq!(again, expected, "request {request} again");
        }
        assert_eq!(server.client().run("GET counter").text(), request.to_string());
    }
    server.stop();
}

#[test]
fn a_transaction_sent_again_takes_effect_once() {
    let dir = tempfile::tempdir().unwrap();
    let exec = |client: &mut Client| {
        assert_eq!(client.run("CLIENT SESSION 5"), Reply::ok());
        assert_eq!(client.run("MULTI"), Reply::ok());
        assert_eq!(client.run("INCRBY from -7").text(), "QUEUED");
        assert_eq!(client.run("INCRBY to 7").text(), "QUEUED");
        client.run("EXEC")
    };
    let numbered = |client: &mut Client| {
        assert_eq!(client.run("CLIENT SESSION 5"), Reply::ok());
        assert_eq!(client.run("CLIENT REQUEST 1"), Reply::ok());
        assert_eq!(client.run("MULTI"), Reply::ok());
        assert_eq!(client.run("INCRBY from -7").text(), "QUEUED");
        assert_eq!(client.run("INCRBY to 7").text(), "QUEUED");
        client.run("EXEC")
    };
    let once = Reply::Array(vec![Reply::Int(-7), Reply::Int(7)]);
    let server = Server::start(serve_dir(dir.path(), [""; 0]));
    assert_eq!(numbered(&mut server.client()), once);
    server.kill();
    let server = Server::start(serve_dir(dir.path(), [""; 0]));
    assert_eq!(numbered(&mut server.client()), once);
    // Without a number it is another transaction.
    assert_eq!(exec(&mut server.client()), Reply::Array(vec![Reply::Int(-14), Reply::Int(14)]));
    server.stop();
}
