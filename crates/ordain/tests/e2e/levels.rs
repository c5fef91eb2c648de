//! What transactions see of each other, as it is asked for: `--isolation` and `--cascade` of `qstore`, on real processes.

use std::path::Path;

use crate::support::{Client, Expect, Reply, Server, command, run, serve_dir};

fn start(dir: &Path, flags: &[&str]) -> Server {
    Server::start(serve_dir(dir, ["--engine", "qstore", "--threads", "2"].iter().chain(flags)))
}

/// The answers to commands that go on their way in one piece, so that they are of one epoch.
fn at_once(client: &mut Client, commands: &[Vec<u8>]) -> Vec<Reply> {
    client.send(&commands.concat()).unwrap();
    commands.iter().map(|_| client.receive().unwrap()).collect()
}

fn words(text: &str) -> Vec<u8> {
    command(&text.split(' ').collect::<Vec<_>>())
}

/// The guide's example: between two keys an update may be lost.
#[test]
fn what_is_only_read_is_of_the_epoch_before_at_read_committed() {
    for (isolation, shown) in [("serializable", "12"), ("read-committed", "10")] {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path(), &["--isolation", isolation]);
        let mut client = server.client();
        assert_eq!(client.run("MSET price 10 stock 5"), Reply::ok());
        let copied = at_once(&mut client, &[words("SET price 12"), words("COPY price shown REPLACE")]);
        assert_eq!(copied, [Reply::ok(), Reply::Int(1)]);
        assert_eq!(client.run("GET shown").text(), shown, "{isolation}");
        // What is both read and written is as ever.
        let counted = at_once(&mut client, &[words("INCR stock"), words("INCR stock"), words("INCR stock")]);
        assert_eq!(counted, [6, 7, 8].map(Reply::Int), "{isolation}");
        let before = client.run("DEBUG DIGEST");
        server.kill();

        // The log is executed again as it was.
        let server = start(dir.path(), &["--isolation", isolation]);
        assert_eq!(server.client().run("DEBUG DIGEST"), before, "{isolation}");
        assert_eq!(server.client().run("GET shown").text(), shown, "{isolation}");
        server.kill();
        let other = if isolation == "serializable" { "read-committed" } else { "serializable" };
        let flags = ["--engine", "qstore", "--isolation", other];
        run(serve_dir(dir.path(), flags)).refused_with(&[isolation, other]);
    }
}

#[test]
fn who_has_used_what_was_undone_is_answered_as_cascades_say() {
    for cascade in ["repair", "abort"] {
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--execution", "speculative", "--cascade", cascade];
        let server = start(dir.path(), &flags);
        let mut client = server.client();
        let mut aborted = 0;
        // Some of these accounts are kept by the other thread than the one that pays: what is of one thread needs no
        // speculation, and nobody has used it before it is undone.
        for to in 1..8 {
            let transfer = |name: &str, amount: u64| words(&format!("FCALL {name} 2 b0 b{to} {amount}"));
            assert_eq!(at_once(&mut client, &[transfer("bank.open", 100)]), [Reply::ok()]);
            let balance = words(&format!("FCALL_RO bank.balances 1 b{to}"));
            let told = at_once(
                &mut client,
                &[transfer("bank.transfer", 101), balance.clone(), words("INCR others"), balance.clone()],
            );
            assert_eq!(told[0].error(), "NOFUNDS not enough in the account");
            assert_eq!(told[2], Reply::Int(to as i64), "it has used nothing of that");
            assert_eq!(told[1], told[3]);
            if told[1] != Reply::Int(100) {
                assert!(told[1].error().starts_with("TXNABORT it used what"), "{told:?}");
                aborted += 1;
            }
            assert_eq!(at_once(&mut client, &[balance]), [Reply::Int(100)], "by then it is undone");
        }
        assert_eq!(aborted > 0, cascade == "abort", "{aborted}");
        let before = client.run("DEBUG DIGEST");
        server.kill();
        let server = start(dir.path(), &flags);
        assert_eq!(server.client().run("DEBUG DIGEST"), before, "{cascade}");
        server.stop();
    }
}
