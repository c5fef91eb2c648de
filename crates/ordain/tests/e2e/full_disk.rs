//! A disk that is full, and one that cannot be written: no write is acknowledged, reads go on, nothing
//! acknowledged is lost, and a disk with room again is used again.
//!
//! The disk is a small tmpfs in a mount namespace of its own, so nothing is left behind whatever happens. Where the
//! system does not permit that, these tests say so and pass.

use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::support::{Expect, Reply, Server, clean, run, serve_dir, until};

/// A file system of its own, alive as long as the process that holds it.
struct SmallDisk {
    holder: Child,
    _stdin: ChildStdin,
    mount: tempfile::TempDir,
}

impl SmallDisk {
    /// A disk of this size; `None` where the system does not permit one.
    fn new(size: &str) -> Option<SmallDisk> {
        let mount = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=$1 ordain-test $2 && echo mounted && exec cat >/dev/null";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh", size]).arg(mount.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = match command.spawn() {
            Ok(holder) => holder,
            Err(error) => {
                println!("skipped: no unshare here: {error}");
                return None;
            }
        };
        let (stdin, stdout) = (holder.stdin.take().unwrap(), holder.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        if line != "mounted\n" {
            let _ = holder.wait();
            println!("skipped: this system permits no mounts here");
            return None;
        }
        Some(SmallDisk { holder, _stdin: stdin, mount })
    }

    /// The same command, run where the disk is mounted.
    fn inside(&self, command: &Command) -> Command {
        let target = self.holder.id().to_string();
        let words = ["--target", &target, "--user", "--mount", "--preserve-credentials", "--"];
        let mut inside = clean(Command::new("nsenter"), words);
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    fn data(&self) -> PathBuf {
        self.mount.path().join("data")
    }

    fn serve(&self) -> Command {
        self.inside(&serve_dir(&self.data(), ["--threads", "2"]))
    }

    fn shell(&self, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(self.mount.path());
        let ended = run(self.inside(&command));
        assert_eq!(ended.code, Some(0), "{script}: {ended:?}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    // Room for the first segment of the log, and not for another beside the filler.
    let Some(disk) = SmallDisk::new("160m") else { return };
    let server = Server::start(disk.serve());
    disk.shell("head -c 70000000 /dev/zero > $1/filler");
    let mut client = server.client();
    assert_eq!(client.run("SET key value"), Reply::ok());
    let value = vec![b'v'; 1 << 20];
    let mut kept = 0;
    let refusal = loop {
        assert!(kept < 200, "the disk is never full");
        match client.call(&[&b"SET"[..], format!("large:{kept}").as_bytes(), &value]) {
            refusal @ Reply::Error(_) => break refusal.error().to_owned(),
            reply => assert_eq!(reply, Reply::ok()),
        }
        kept += 1;
    };
    println!("refused after {kept} MiB: {refusal}");
    assert!(kept > 10, "{kept}");
    let check = |server: &Server| {
        let mut client = server.client();
        assert_eq!(client.run("GET key").text(), "value");
        for i in 0..kept {
            assert_eq!(client.run(&format!("STRLEN large:{i}")), Reply::Int(1 << 20));
        }
        // What was refused has no effect.
        assert_eq!(client.run(&format!("EXISTS large:{kept}")), Reply::Int(0));
    };
    for _ in 0..3 {
        check(&server);
        let mut client = server.client();
        client.call(&[&b"SET"[..], format!("large:{kept}").as_bytes(), &value]).error();
    }
    assert_eq!(server.http("/healthz").0, 200);

    disk.shell("rm $1/filler");
    until("writes work again", || client.run("SET again value") == Reply::ok());
    check(&server);
    assert_eq!(client.call(&[&b"SET"[..], b"larger", &value]), Reply::ok());
    let digest = client.run("DEBUG DIGEST");
    server.kill();
    let server = Server::start(disk.serve());
    check(&server);
    assert_eq!(server.client().run("DEBUG DIGEST"), digest);
    server.stop();
}

#[test]
fn a_node_killed_on_a_full_disk_starts_again_with_all_that_was_acknowledged() {
    let Some(disk) = SmallDisk::new("100m") else { return };
    let server = Server::start(disk.serve());
    let mut client = server.client();
    let value = vec![b'v'; 1 << 20];
    let mut kept = 0;
    while client.call(&[&b"SET"[..], format!("large:{kept}").as_bytes(), &value]) == Reply::ok() {
        kept += 1;
        assert!(kept < 200, "the disk is never full");
    }
    server.kill();
    let server = Server::start(disk.serve());
    let mut client = server.client();
    assert_eq!(client.run("DBSIZE"), Reply::Int(kept));
    assert_eq!(client.run(&format!("STRLEN large:{}", kept - 1)), Reply::Int(1 << 20));
    server.stop();
}

#[test]
fn no_room_for_a_checkpoint_leaves_the_one_before_and_the_node_serving() {
    // Room for the log's segment, a checkpoint, and not for another beside the filler.
    let Some(disk) = SmallDisk::new("160m") else { return };
    let server = Server::start(disk.serve());
    let mut client = server.client();
    let value = vec![b'v'; 1 << 20];
    for key in 0..20 {
        assert_eq!(client.call(&[&b"SET"[..], format!("large:{key}").as_bytes(), &value]), Reply::ok());
    }
    let checkpoint = |server: &Server| -> serde_json::Value {
        serde_json::from_str::<serde_json::Value>(&server.http("/status").2).unwrap()["checkpoint"].clone()
    };
    crate::checkpoint::save(&server);
    let before = checkpoint(&server);
    disk.shell("head -c 60000000 /dev/zero > $1/filler");
    client.run("BGSAVE");
    until("it was given up", || checkpoint(&server)["failing"] == true);
    let after = checkpoint(&server);
    assert_eq!((&after["epoch"], &after["kept"]), (&before["epoch"], &before["kept"]));
    assert_eq!(client.run("SET small value"), Reply::ok(), "the log has room");
    assert_eq!(client.run("STRLEN large:19"), Reply::Int(1 << 20));
    let digest = client.run("DEBUG DIGEST");
    server.kill();
    let server = Server::start(disk.serve());
    assert!(server.process().stderr().contains("begins from a checkpoint"), "{}", server.process().stderr());
    assert_eq!(server.client().run("DEBUG DIGEST"), digest);
    disk.shell("rm $1/filler");
    crate::checkpoint::save(&server);
    let checkpoint = checkpoint(&server);
    assert_eq!((&checkpoint["failing"], &checkpoint["kept"]), (&false.into(), &2.into()));
    server.stop();
}

#[test]
fn a_disk_without_room_for_a_log_is_refused() {
    let Some(disk) = SmallDisk::new("1m") else { return };
    run(disk.serve()).refused_with(&[disk.data().to_str().unwrap()]);
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused() {
    let Some(disk) = SmallDisk::new("100m") else { return };
    let server = Server::start(disk.serve());
    assert_eq!(server.client().run("SET key value"), Reply::ok());
    server.stop();
    disk.shell("mount -o remount,ro $1");
    run(disk.serve()).refused_with(&[disk.data().to_str().unwrap(), "ead-only"]);
    disk.shell("mount -o remount,rw $1");
    let server = Server::start(disk.serve());
    assert_eq!(server.client().run("GET key").text(), "value");
    server.stop();
}
