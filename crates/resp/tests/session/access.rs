//! Who may do what: other protocols are cut off.

use ordain_resp::Fate;

use ordain_conformance::reference::Server;

/// What curl sends for `curl http://127.0.0.1:6379/ --data-binary $'\r\nSET pwned 1\r\n'`.
const CURL: &[u8] = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\
    Content-Length: 15\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n\r\nSET pwned 1\r\n";

#[test]
fn http_is_cut_off_before_anything_of_it_is_executed() {
    let get = b"GET /%0D%0A HTTP/1.1\r\nhOST: 127.0.0.1:6379\r\nAccept: */*\r\n\r\nSET pwned 1\r\n";
    let array = b"*1\r\n$4\r\npost\r\n*3\r\n$3\r\nSET\r\n$5\r\npwned\r\n$1\r\n1\r\n";
    for (request, mode) in
        [(CURL, None), (get, None), (array, None), (CURL, Some("MULTI")), (CURL, Some("TXN.BEGIN"))]
    {
        let mut server = Server::new(2);
        if let Some(mode) = mode {
            server.ask(0, &[mode]);
        }
        // However it is cut, and with what follows sent later.
        for piece in request.chunks(7) {
            server.send(0, piece);
        }
        server.settle();
        assert_eq!(server.clients[0].session.fate(), Fate::Close);
        assert_eq!(server.ask(1, &["EXISTS", "pwned"]), ":0\n");
        assert_eq!(server.notices(), ["Foreign { peer: \"127.0.0.1:50000\", foreign: Http }"]);
    }
}

#[test]
fn http_is_cut_off_before_the_password_too() {
    let mut server = Server::new(1);
    server.require_password("secret");
    server.send(0, CURL);
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert_eq!(server.take(0), "");
}

#[test]
fn a_key_may_be_called_post() {
    let mut server = Server::new(1);
    assert_eq!(server.ask(0, &["SET", "post", "Host:"]), "+OK\n");
    assert_eq!(server.ask(0, &["GET", "POST"]), "$-1\n");
    assert_eq!(server.ask(0, &["POSTS"]), "-ERR unknown command 'POSTS', with args beginning with: \n");
}

#[test]
fn tls_on_a_plain_port_is_cut_off() {
    let mut server = Server::new(1);
    for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" {
        server.send(0, &[*byte]);
    }
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert_eq!(server.notices(), ["Foreign { peer: \"127.0.0.1:50000\", foreign: Tls }"]);
    // A line that merely begins alike is an unknown command.
    let mut server = Server::new(1);
    server.send(0, b"\x16x\r\n");
    server.settle();
    assert_eq!(server.take(0), "-ERR unknown command '\\x16x', with args beginning with: \n");
}

#[test]
fn users_are_made_shown_and_removed() {
    let mut server = Server::new(2);
    let hash = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    assert_eq!(server.ask(0, &["ACL", "WHOAMI"]), "$7\ndefault\n");
    assert_eq!(
        server.ask(0, &["ACL", "SETUSER", "u", "on", ">p", "~a*", "%R~b*", "&ch", "+get", "(+set", "~z)"]),
        "+OK\n"
    );
    assert_eq!(server.ask(0, &["ACL", "USERS"]), "*2\n$7\ndefault\n$1\nu\n");
    let line =
        format!("user u on #{hash} ~a* %R~b* resetchannels &ch -@all +get (~z resetchannels -@all +set)");
    assert_eq!(
        server.ask(0, &["ACL", "LIST"]),
        format!("*2\n$35\nuser default on nopass ~* &* +@all\n${}\n{line}\n", line.len())
            .replace("$35", "$34")
    );
    assert_eq!(
        server.ask(0, &["ACL", "GETUSER", "u"]),
        format!(
            "*12\n$5\nflags\n*1\n$2\non\n$9\npasswords\n*1\n$64\n{hash}\n$8\ncommands\n$10\n-@all +get\n$4\nkeys\n\
             $9\n~a* %R~b*\n$8\nchannels\n$3\n&ch\n$9\nselectors\n*1\n*6\n$8\ncommands\n$10\n-@all +set\n$4\nkeys\n$2\n~z\n\
             $8\nchannels\n$0\n\n"
        )
    );
    assert_eq!(server.ask(1, &["AUTH", "u", "p"]), "+OK\n");
    assert_eq!(
        server.ask(1, &["ACL", "WHOAMI"]),
        "-NOPERM this user has no permissions to run the 'acl|whoami' command\n"
    );
    assert!(server.ask(0, &["CLIENT", "LIST"]).contains(" user=u redir"));
    assert_eq!(server.ask(0, &["ACL", "GETUSER", "nobody"]), "$-1\n");
    assert_eq!(server.ask(0, &["ACL", "DELUSER", "u", "nobody"]), ":1\n");
    assert_eq!(server.clients[1].session.fate(), Fate::Close);
    assert_eq!(server.ask(0, &["ACL", "DELUSER", "default"]), "-ERR The 'default' user cannot be removed\n");
    assert_eq!(
        server.ask(0, &["ACL", "SETUSER", "a b"]),
        "-ERR Usernames can't contain spaces or null characters\n"
    );
    assert_eq!(
        server.ask(0, &["ACL", "SETUSER", "v", "+nope"]),
        "-ERR Error in ACL SETUSER modifier '+nope': Unknown command or category name in ACL\n"
    );
    assert_eq!(server.ask(0, &["ACL", "GETUSER", "v"]), "$-1\n");
    assert_eq!(server.ask(0, &["ACL", "GENPASS", "12"]), "$3\na5a\n");
    assert_eq!(
        server.ask(0, &["ACL", "GENPASS", "5000"]),
        "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096\n"
    );
    assert_eq!(server.ask(0, &["CLIENT", "KILL", "USER", "nobody"]), "-ERR No such user 'nobody'\n");
}

#[test]
fn who_removes_the_own_user_is_answered_and_closed() {
    let mut server = Server::new(1);
    server.ask(0, &["ACL", "SETUSER", "u", "on", ">p", "~*", "+@all"]);
    assert_eq!(server.ask(0, &["AUTH", "u", "p"]), "+OK\n");
    server.send(0, b"ACL DELUSER u\r\nSET k v\r\n");
    server.settle();
    assert_eq!(server.take(0), ":1\n");
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert_eq!(server.transactions, 0);
}

const KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments\n";

fn limited() -> Server {
    let mut server = Server::new(2);
    for key in ["a1", "r1", "q1"] {
        server.ask(0, &["SET", key, key]);
    }
    let rules = ["on", ">p", "~a*", "%R~r*", "+@all", "-keys", "-flushall", "(+set", "~z*)"];
    let words: Vec<&str> = ["ACL", "SETUSER", "u"].into_iter().chain(rules).collect();
    assert_eq!(server.ask(0, &words), "+OK\n");
    assert_eq!(server.ask(1, &["HELLO", "2", "AUTH", "u", "p"]).lines().next(), Some("*14"));
    server
}

#[test]
fn every_command_is_checked_as_it_comes() {
    let mut server = limited();
    assert_eq!(server.ask(1, &["GET", "a1"]), "$2\na1\n");
    assert_eq!(server.ask(1, &["GET", "q1"]), KEY);
    assert_eq!(server.ask(1, &["SET", "r1", "x"]), KEY);
    assert_eq!(server.ask(1, &["SET", "z1", "x"]), "+OK\n");
    assert_eq!(
        server.ask(1, &["KEYS", "*"]),
        "-NOPERM this user has no permissions to run the 'keys' command\n"
    );
    assert_eq!(server.ask(1, &["WATCH", "q1"]), KEY);
    assert_eq!(server.ask(1, &["MULTI"]), "+OK\n");
    assert_eq!(server.ask(1, &["GET", "q1"]), KEY);
    assert_eq!(server.ask(1, &["EXEC"]), "-EXECABORT Transaction discarded because of previous errors.\n");
    assert_eq!(server.ask(1, &["TXN.BEGIN"]), "+OK\n");
    assert_eq!(server.ask(1, &["GET", "q1"]), KEY);
    assert_eq!(server.ask(1, &["GET", "a1"]), "$2\na1\n");
    assert_eq!(server.ask(1, &["TXN.COMMIT"]), "+OK\n");
    // A native procedure finds its keys itself.
    assert_eq!(server.ask(1, &["FCALL", "till.take", "1", "a1", "1"]), KEY);
    let log = server.ask(0, &["ACL", "LOG"]);
    assert!(
        log.contains("$3\nkey\n") && log.contains("$7\ncommand\n") && log.contains("$5\nmulti\n"),
        "{log}"
    );
    assert!(
        server.ask(0, &["INFO", "stats"]).contains("acl_access_denied_key:6\n"),
        "{}",
        server.ask(0, &["INFO", "stats"])
    );
    assert_eq!(server.ask(0, &["ACL", "LOG", "RESET"]), "+OK\n");
    assert_eq!(server.ask(0, &["ACL", "LOG"]), "*0\n");
}

#[test]
fn scripts_and_functions_have_the_rights_of_their_user() {
    let mut server = limited();
    let get = "return redis.call('get', KEYS[1])";
    assert_eq!(server.ask(1, &["EVAL", get, "1", "a1"]), "$2\na1\n");
    // EVAL may write to its keys.
    assert_eq!(server.ask(1, &["EVAL", get, "1", "r1"]), KEY);
    assert_eq!(server.ask(1, &["EVAL_RO", get, "1", "r1"]), "$2\nr1\n");
    assert_eq!(server.ask(1, &["EVAL", get, "1", "q1"]), KEY);
    let denied = server.ask(1, &["EVAL", "return redis.call('flushall')", "0"]);
    assert!(
        denied
            .starts_with("-ERR The user executing the script can't run this command or subcommand script: "),
        "{denied}"
    );
    // A key that is declared and then used for more than its pattern grants.
    server.ask(0, &["ACL", "SETUSER", "u", "%W~w*", "-get"]);
    let denied = server.ask(1, &["EVAL", get, "1", "a1"]);
    assert!(denied.starts_with("-ERR The user executing the script can't run this command"), "{denied}");
    let caught = "return {redis.pcall('get', KEYS[1]).err, redis.call('strlen', KEYS[1])}";
    assert_eq!(
        server.ask(1, &["EVAL", caught, "1", "a1"]),
        "*2\n$70\nERR The user executing the script can't run this command or subcommand\n:2\n"
    );
    let sha = server.ask(1, &["SCRIPT", "LOAD", caught]).lines().nth(1).unwrap().to_owned();
    assert!(server.ask(1, &["EVALSHA", &sha, "1", "a1"]).starts_with("*2\n$70\nERR"));
    assert!(
        server.ask(0, &["EVALSHA", &sha, "1", "a1"]).starts_with("-ERR")
            || server.ask(0, &["GET", "a1"]) == "$2\na1\n"
    );
    let library =
        "#!lua name=l\nredis.register_function('peek', function(keys) return redis.call('get', keys[1]) end)";
    assert_eq!(server.ask(0, &["FUNCTION", "LOAD", library]), "$1\nl\n");
    assert_eq!(server.ask(0, &["FCALL", "peek", "1", "a1"]), "$2\na1\n");
    let denied = server.ask(1, &["FCALL", "peek", "1", "a1"]);
    assert!(denied.starts_with("-ERR The user executing the script can't run this command"), "{denied}");
    // In a block too.
    server.send(1, b"MULTI\r\nEVAL \"return redis.call('get', KEYS[1])\" 1 a1\r\nSTRLEN a1\r\nEXEC\r\n");
    server.settle();
    let replies = server.take(1);
    assert!(
        replies.contains("*2\n-ERR The user executing the script can't run") && replies.ends_with("\n:2\n"),
        "{replies}"
    );
}

#[test]
fn rights_that_change_before_exec_count() {
    let mut server = limited();
    server.send(1, b"MULTI\r\nSTRLEN a1\r\nGET a1\r\nGET r1\r\nEVAL \"return 1\" 0\r\n");
    server.settle();
    assert_eq!(server.take(1), "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n+QUEUED\n");
    assert_eq!(server.ask(0, &["ACL", "SETUSER", "u", "resetkeys", "%R~r*", "%W~a*"]), "+OK\n");
    let changed = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This \
                   command is no longer allowed for the following reason: no permission to";
    assert_eq!(
        server.ask(1, &["EXEC"]),
        format!(
            "*4\n:2\n{changed} touch the specified keys\n$2\nr1\n{changed} execute the command or subcommand\n"
        )
    );
    // And of an interactive transaction.
    assert_eq!(server.ask(1, &["TXN.BEGIN"]), "+OK\n");
    assert_eq!(server.ask(1, &["GET", "r1"]), "$2\nr1\n");
    assert_eq!(server.ask(0, &["ACL", "SETUSER", "u", "resetkeys"]), "+OK\n");
    assert_eq!(
        server.ask(1, &["TXN.COMMIT"]),
        "-TXNABORT the rights of this connection's user have changed since TXN.BEGIN: begin it again\n"
    );
    // Those of somebody who could do everything when the block was begun.
    server.ask(0, &["ACL", "SETUSER", "w", "on", ">p", "~*", "&*", "+@all"]);
    server.ask(0, &["ACL", "DELUSER", "u"]);
    let mut server = server;
    assert_eq!(server.ask(0, &["AUTH", "w", "p"]), "+OK\n");
    server.send(0, b"MULTI\r\nGET a1\r\nACL SETUSER w resetkeys\r\nEXEC\r\nGET a1\r\n");
    server.settle();
    assert!(server.take(0).ends_with(KEY));
}

#[test]
fn dry_runs_say_what_is_missing() {
    let mut server = limited();
    for (words, reply) in [
        (&["u", "GET", "a1"][..], "+OK\n"),
        (&["u", "GET", "q"], "$51\nThis user has no permissions to access the 'q' key\n"),
        (&["u", "KEYS", "*"], "$52\nThis user has no permissions to run the 'keys' command\n"),
        (&["nobody", "GET", "q"], "-ERR User 'nobody' not found\n"),
        (&["u", "NOPE", "q"], "-ERR Command 'NOPE' not found\n"),
        (&["u", "GET"], "-ERR wrong number of arguments for 'get' command\n"),
    ] {
        let all: Vec<&str> = ["ACL", "DRYRUN"].into_iter().chain(words.iter().copied()).collect();
        let answer = server.ask(0, &all);
        let text = |reply: &str| reply.lines().next_back().unwrap_or_default().to_owned();
        assert_eq!(text(&answer), text(reply), "{words:?}");
    }
}

#[test]
fn the_file_is_read_and_written() {
    let mut server = Server::new(2);
    assert!(server.ask(0, &["ACL", "SAVE"]).starts_with("-ERR this node has no ACL file"));
    assert!(server.ask(0, &["ACL", "LOAD"]).starts_with("-ERR this node has no ACL file"));
    server.set_users("user a on >p ~* +@all\nuser b on >p ~* +@all\n");
    assert_eq!(server.ask(1, &["AUTH", "b", "p"]), "+OK\n");
    assert_eq!(server.ask(0, &["ACL", "SETUSER", "c", "on", "nopass", "+get"]), "+OK\n");
    assert_eq!(server.ask(0, &["ACL", "SAVE"]), "+OK\n");
    let text = String::from_utf8(server.users_file().clone().unwrap()).unwrap();
    assert_eq!(text.lines().count(), 4);
    assert!(text.contains("user c on nopass resetchannels -@all +get\n"), "{text}");
    *server.users_file() = Some(b"user a on >p\nuser".to_vec());
    assert!(server.ask(0, &["ACL", "LOAD"]).contains("users are as they were: line 2:"));
    assert_eq!(server.ask(1, &["PING"]), "+PONG\n");
    *server.users_file() = Some(b"user a on >p ~* +@all\n".to_vec());
    assert_eq!(server.ask(0, &["ACL", "LOAD"]), "+OK\n");
    assert_eq!(server.ask(0, &["ACL", "USERS"]), "*2\n$1\na\n$7\ndefault\n");
    assert_eq!(server.clients[1].session.fate(), Fate::Close);
    // Work on a file is not waited for in a block.
    assert_eq!(server.ask(0, &["MULTI"]), "+OK\n");
    assert_eq!(server.ask(0, &["ACL", "SAVE"]), "+QUEUED\n");
    assert!(server.ask(0, &["EXEC"]).contains("-ERR Command not allowed inside a transaction"));
}

#[test]
fn who_loads_a_file_without_its_own_user_is_told_first() {
    let mut server = Server::new(1);
    server.set_users("user a on >p ~* +@all\n");
    assert_eq!(server.ask(0, &["AUTH", "a", "p"]), "+OK\n");
    *server.users_file() = Some(b"user b on >p ~* +@all\n".to_vec());
    assert_eq!(server.ask(0, &["ACL", "LOAD"]), "+OK\n");
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
}

#[test]
fn guesses_wait_and_are_counted_noted_and_cut_off() {
    let mut server = Server::new(3);
    server.require_password("secret");
    let begun = server.now;
    for _ in 0..9 {
        assert!(server.ask(0, &["AUTH", "guess"]).starts_with("-WRONGPASS"));
    }
    // The first five cost nothing, the others 100, 200, 400 and 800 ms.
    assert_eq!(server.now.since(begun).0, 1_500_000);
    assert!(server.ask(0, &["AUTH", "guess"]).starts_with("-WRONGPASS"));
    assert_eq!(server.clients[0].session.fate(), Fate::Close);
    assert_eq!(server.notices().len(), 10);
    assert!(!server.notices()[0].contains("guess"), "no secret in the log");
    // Another connection from there waits too, and the right password is let in after it.
    let before = server.now;
    assert_eq!(server.ask(1, &["HELLO", "3", "AUTH", "default", "secret"]).lines().next(), Some("%7"));
    assert!(server.now > before);
    assert!(server.ask(1, &["INFO", "stats"]).contains("acl_access_denied_auth:10\r\n".trim_end()));
    assert!(server.ask(1, &["ACL", "LOG"]).contains("auth"));
    // What is sent behind a login that waits is handled after it.
    server.send(2, b"AUTH secret\r\nSET k v\r\n");
    server.settle();
    assert_eq!(server.take(2), "+OK\n+OK\n");
}
