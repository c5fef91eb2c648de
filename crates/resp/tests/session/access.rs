//! Who may do what: other protocols are cut off.

use ordain_resp::Fate;

use crate::support::Server;

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
