//! Scripts that run for long, and the operators who end them.

use crate::support::{Client, Reply, Server, command, serve};

/// Sends a command until it is answered otherwise than that no script runs.
fn kill(client: &mut Client, words: &[&str; 2]) -> Reply {
    loop {
        match client.call(words) {
            Reply::Error(text) if text.starts_with("NOTBUSY") => {}
            reply => return reply,
        }
    }
}

fn ended(client: &mut Client, place: &str) {
    let reply = client.receive().unwrap();
    let text = reply.error();
    assert!(text.starts_with("ERR Script killed by user with SCRIPT KILL... script: "), "{text}");
    // One that ends before its first instruction has come to no line.
    assert!(text.ends_with(place) || !text.contains(", on @"), "{text}");
}

#[test]
fn an_operator_ends_scripts_that_only_read() {
    const ENDLESS: &str = "\nwhile true do pcall(function() while true do end end) end";
    const LIBRARY: &str = "#!lua name=l\nredis.register_function{function_name='f', flags={'no-writes'}, \
                           callback=function() while true do end end}";
    for engine in ["calvin", "qstore", "paxflow"] {
        let server = Server::start(serve(["--ephemeral", "--threads", "2", "--engine", engine]));
        let (mut caller, mut operator) = (server.client(), server.client());
        assert!(operator.call(&["SCRIPT", "KILL"]).error().starts_with("NOTBUSY"));
        assert_eq!(operator.call(&["FUNCTION", "LOAD", LIBRARY]).text(), "l");
        operator.run("SET k before");

        caller.send(&command(&["EVAL_RO", ENDLESS, "1", "k"])).unwrap();
        assert!(kill(&mut operator, &["FUNCTION", "KILL"]).error().starts_with("BUSY"));
        assert_eq!(kill(&mut operator, &["SCRIPT", "KILL"]), Reply::ok());
        ended(&mut caller, ", on @user_script:2.");
        assert_eq!(caller.run("GET k").text(), "before");

        caller.send(&command(&["FCALL_RO", "f", "1", "k"])).unwrap();
        assert!(kill(&mut operator, &["SCRIPT", "KILL"]).error().starts_with("BUSY"));
        assert_eq!(kill(&mut operator, &["FUNCTION", "KILL"]), Reply::ok());
        ended(&mut caller, " script: f, on @user_function:2.");
        assert!(operator.call(&["FUNCTION", "KILL"]).error().starts_with("NOTBUSY"));
        server.stop();
    }
}

#[test]
fn what_is_in_the_log_cannot_be_ended_alone() {
    let server = Server::start(serve(["--ephemeral", "--threads", "2", "--engine", "calvin"]));
    let (mut caller, mut operator) = (server.client(), server.client());
    caller.send(&command(&["EVAL", "redis.call('SET', KEYS[1], 'x') while true do end", "1", "k"])).unwrap();
    let refused = kill(&mut operator, &["SCRIPT", "KILL"]);
    assert!(refused.error().starts_with("UNKILLABLE The script is in the log"), "{refused:?}");
    assert!(caller.receive().unwrap().error().contains("ran past its budget"));
    assert_eq!(operator.run("EXISTS k"), Reply::Int(0));
    server.stop();
}
