//! Replies in any pieces, replies of the server's own encoder, and bytes that are none.

use proptest::prelude::*;

use super::*;
use crate::codec::{self, Protocol, RequestLimits, RequestParser, Step};
use ordain_model::{Args, Writer, args};

const SMALL: ReplyLimits = ReplyLimits { bytes: 200, line: 20, depth: 4 };

/// All replies of the bytes, given in these pieces, and the error that ends them.
fn in_pieces<'a>(
    limits: ReplyLimits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Reply>, Option<ReplyError>) {
    let (mut reader, mut replies) = (ReplyReader::new(limits), Vec::new());
    for piece in pieces {
        reader.feed(piece);
        loop {
            match reader.next_reply() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

/// Checks that any pieces of the bytes give what the whole gives.
fn check_pieces(limits: ReplyLimits, bytes: &[u8]) -> Result<(), TestCaseError> {
    let whole = in_pieces(limits, [bytes]);
    for at in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(at);
        prop_assert_eq!(&in_pieces(limits, [head, tail]), &whole, "cut at {}", at);
    }
    for size in 1..=bytes.len().min(40) {
        prop_assert_eq!(&in_pieces(limits, bytes.chunks(size)), &whole, "pieces of {}", size);
    }
    Ok(())
}

/// Writes the datum of a reply, from which the server makes it.
fn write_datum(reply: &Reply, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    match reply {
        Reply::Status(text) => w.status(text),
        Reply::Error(text) => w.error(text),
        Reply::Int(i) => w.int(*i),
        Reply::Bulk(bytes) => w.bulk(bytes),
        Reply::Verbatim(format, text) => w.verbatim(*format, text),
        Reply::Nil => w.nil(),
        Reply::Bool(b) => w.bool(*b),
        Reply::Double(text) => w.double(std::str::from_utf8(text).unwrap().parse().unwrap()),
        Reply::BigNumber(digits) => w.big_number(digits),
        Reply::Array(items) => w.array(items.len()),
        Reply::Set(items) => w.set(items.len()),
        Reply::Map(items) => w.map(items.len() / 2),
        Reply::Push(_) => panic!("the server sends no messages"),
    }
    reply.composite().unwrap_or_default().iter().for_each(|item| write_datum(item, out));
}

/// The reply that a client of RESP2 gets in the place of one of RESP3.
fn in_resp2(reply: Reply) -> Reply {
    let all = |items: Vec<Reply>| items.into_iter().map(in_resp2).collect();
    match reply {
        Reply::Array(items) | Reply::Set(items) | Reply::Map(items) => Reply::Array(all(items)),
        Reply::Verbatim(_, text) | Reply::Double(text) | Reply::BigNumber(text) => Reply::Bulk(text),
        Reply::Bool(b) => Reply::Int(i64::from(b)),
        other => other,
    }
}

fn replies() -> impl Strategy<Value = Reply> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..30);
    let line = || "[ -~]{0,12}".prop_map(String::into_bytes);
    let leaf = prop_oneof![
        line().prop_map(Reply::Status),
        line().prop_map(Reply::Error),
        any::<i64>().prop_map(Reply::Int),
        bytes().prop_map(Reply::Bulk),
        bytes().prop_map(|text| Reply::Verbatim(*b"txt", text)),
        Just(Reply::Nil),
        any::<bool>().prop_map(Reply::Bool),
        prop::sample::select(vec!["0", "3", "-0.5", "1e+21", "inf", "-inf", "2.75"])
            .prop_map(|text| Reply::Double(text.into())),
        "-?[1-9][0-9]{0,30}".prop_map(|digits| Reply::BigNumber(digits.into_bytes())),
    ];
    leaf.prop_recursive(5, 40, 5, |item| {
        let items = prop::collection::vec(item, 0..5);
        prop_oneof![
            items.clone().prop_map(Reply::Array),
            items.clone().prop_map(Reply::Set),
            items.prop_map(|mut items| {
                items.truncate(items.len() / 2 * 2);
                Reply::Map(items)
            }),
        ]
    })
}

proptest! {
    /// The parser reads what the encoder writes, and in any pieces.
    #[test]
    fn replies_of_the_server_are_read_as_they_were_written(sent in prop::collection::vec(replies(), 1..4)) {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        for reply in &sent {
            let mut datum = Vec::new();
            write_datum(reply, &mut datum);
            codec::encode(Protocol::Resp2, &datum, &mut two);
            let start = three.len();
            codec::encode(Protocol::Resp3, &datum, &mut three);
            let mut back = Vec::new();
            let read = ReplyParser::default().read_datum(&three[start..], &mut back);
            prop_assert_eq!(read, Ok(Read::Whole(three.len() - start)));
            prop_assert_eq!(back, datum);
        }
        let whole = in_pieces(ReplyLimits::default(), [&three[..]]);
        prop_assert_eq!(&whole, &(sent.clone(), None));
        check_pieces(ReplyLimits::default(), &three)?;
        let sent: Vec<Reply> = sent.into_iter().map(in_resp2).collect();
        prop_assert_eq!(in_pieces(ReplyLimits::default(), [&two[..]]), (sent, None));
        check_pieces(ReplyLimits::default(), &two)?;
    }

    /// Bytes that are no replies, or too large ones, end in the same error in any pieces.
    #[test]
    fn pieces_of_any_bytes_end_alike(
        words in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    &b"*"[..], b"%", b"~", b">", b"$", b"=", b"!", b"+", b"-", b":", b",", b"(", b"#", b"_", b"0", b"1", b"2",
                    b"9", b"-1", b"\r\n", b"\r\n", b"\r\n", b"\r", b"\n", b"t", b"txt:", b"+OK\r\n", b":1\r\n", b"_\r\n",
                    b"$1\r\nx\r\n", b"*1\r\n", b"*2\r\n", b"%1\r\n",
                ]).prop_map(<[u8]>::to_vec),
                prop::collection::vec(any::<u8>(), 0..3),
            ],
            0..40,
        ),
    ) {
        check_pieces(SMALL, &words.concat())?;
    }

    /// A request parser finds the words of a command that was written.
    #[test]
    fn commands_are_read_as_they_were_written(
        words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..6),
    ) {
        let bytes = command(&words);
        let mut parser = RequestParser::default();
        let step = parser.next(&bytes, RequestLimits::FULL);
        prop_assert_eq!(step, Step::Command { consumed: bytes.len() });
        prop_assert!(parser.args(&bytes).eq(words.iter().map(Vec::as_slice)));
        let mut again = Vec::new();
        write_command(&words.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut again);
        prop_assert_eq!(again, bytes);
    }
}

#[test]
fn each_type_has_a_compact_form() {
    for (bytes, text) in [
        (&b"+OK\r\n"[..], "+OK"),
        (b"-ERR no\r\n", "-ERR no"),
        (b"!6\r\nERR no\r\n", "-ERR no"),
        (b"$-1\r\n", "_"),
        (b"*-1\r\n", "_"),
        (b"_\r\n", "_"),
        (b":-7\r\n", ":-7"),
        (b"$3\r\na\r\n\r\n", "\"a\\r\\n\""),
        (b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n", "[:1 [\"\"]]"),
        (b"%1\r\n+a\r\n~1\r\n#t\r\n", "{+a ~[#t]}"),
        (b">2\r\n#f\r\n*0\r\n", ">[#f []]"),
        (b"=5\r\ntxt:x\r\n", "=\"x\""),
        (b",1.50\r\n", ",1.50"),
        (b"(-123\r\n", "(-123"),
    ] {
        let (reply, len) = Reply::read(bytes).unwrap().unwrap();
        assert_eq!((reply.to_string().as_str(), len), (text, bytes.len()));
        for cut in 0..bytes.len() {
            assert_eq!(Reply::read(&bytes[..cut]), Ok(None), "{text} cut at {cut}");
        }
    }
    let long = Reply::Bulk(vec![b'x'; 101]);
    assert_eq!((format!("{long:?}").len(), long.to_string().len()), (102, 103));
    assert!(Reply::Error(b"UNKNOWN outcome".to_vec()).is_error("UNKNOWN"));
    assert!(!Reply::Status(b"UNKNOWN".to_vec()).is_error("UNKNOWN"));
}

#[test]
fn one_reply_is_translated_at_a_time_and_the_nils_differ() {
    let (mut parser, mut out) = (ReplyParser::default(), Vec::new());
    let input = b"$-1\r\n*-1\r\n*0\r\n>1\r\n=5\r\ntxt:x\r\n";
    let mut ends = Vec::new();
    let mut at = 0;
    while let Read::Whole(bytes) = parser.read_datum(&input[at..], &mut out).unwrap() {
        at += bytes;
        ends.push(at);
    }
    assert_eq!(ends, [5, 10, 14, input.len()]);
    let mut expected = Vec::new();
    let mut w = Writer(&mut expected);
    w.nil();
    w.nil_array();
    w.array(0);
    w.array(1);
    w.verbatim(*b"txt", b"x");
    assert_eq!(out, expected);
}

#[test]
fn each_mistake_is_refused_with_its_kind() {
    for (bytes, error) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], ReplyError::Type(b'H')),
        (b"\r\n", ReplyError::Type(b'\r')),
        (b"+a\rb\r\n", ReplyError::LineEnd),
        (b"+a\nb\r\n", ReplyError::LineEnd),
        (b":x\r\n", ReplyError::Text(b':')),
        (b":9223372036854775808\r\n", ReplyError::Text(b':')),
        (b",x\r\n", ReplyError::Text(b',')),
        (b"#x\r\n", ReplyError::Text(b'#')),
        (b"_x\r\n", ReplyError::Text(b'_')),
        (b"(-\r\n", ReplyError::Text(b'(')),
        (b"$-2\r\n", ReplyError::Text(b'$')),
        (b"*1x\r\n", ReplyError::Text(b'*')),
        (b"%-1\r\n", ReplyError::Text(b'%')),
        (b"=3\r\ntxt\r\n", ReplyError::Text(b'=')),
        (b"$2\r\nabcd", ReplyError::Length(b'$')),
        (b"+123456789012345678901", ReplyError::LineTooLong(20)),
        (b"$200\r\n", ReplyError::TooLong(200)),
        (b"*67\r\n", ReplyError::TooLong(200)),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", ReplyError::TooDeep(4)),
    ] {
        let (replies, found) = in_pieces(SMALL, [bytes]);
        assert_eq!((replies, found), (Vec::new(), Some(error)), "{}", bytes.escape_ascii());
        check_pieces(SMALL, bytes).unwrap();
    }
}

#[test]
fn bounds_are_those_of_one_reply_and_are_reached_exactly() {
    let line = b"+12345678901234567890\r\n";
    let nested = b"*1\r\n*1\r\n*1\r\n*1\r\n*0\r\n";
    let long = [&b"$192\r\n"[..], &[b'x'; 192], b"\r\n"].concat();
    assert_eq!(long.len(), SMALL.bytes);
    let (replies, error) = in_pieces(SMALL, [&[&line[..], nested, &long, &long, line].concat()[..]]);
    assert_eq!((replies.len(), error), (5, None));
    let longer = [&b"*2\r\n"[..], &long[..long.len() - 2]].concat();
    assert_eq!(in_pieces(SMALL, [&longer[..]]).1, Some(ReplyError::TooLong(200)));
}

#[test]
fn commands_are_written_as_arrays() {
    let mut commands = Commands::default();
    let args = args::encode(&["a", ""]);
    commands.begin(4).word("SET").number(-12).args(Args::parse(&args).unwrap());
    commands.command(&["PING"]);
    assert_eq!(commands.bytes, b"*4\r\n$3\r\nSET\r\n$3\r\n-12\r\n$1\r\na\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n");
    assert_eq!(commands.count, 2);
    commands.clear();
    assert!(commands.bytes.is_empty() && commands.count == 0);
    assert_eq!(commands.begin(12_345).bytes, b"*12345\r\n");
}
