//! A service that speaks as much of S3 as our client asks of it, with faults on demand: put, parts, get with a range, list,
//! remove. One bucket, in memory.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The bucket's name.
pub const NAME: &str = "ordain-test";

/// The service. It ends with the process.
#[derive(Clone)]
pub struct Bucket {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Uploads under way: for which object, and their parts.
    uploads: BTreeMap<String, (String, BTreeMap<u32, Vec<u8>>)>,
    begun: u64,
    /// It answers nothing but that it cannot.
    refuses: bool,
    /// It drops the connection instead of taking a part with this number or a later one.
    dies_at_part: Option<u32>,
    /// What it was asked for: method and target.
    asked: Vec<String>,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// What it answers: status, headers, body. None: it hangs up.
type Answer = Option<(u16, Vec<(&'static str, String)>, Vec<u8>)>;

impl Bucket {
    /// Starts one, at a free port of this machine.
    pub fn start() -> Bucket {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let bucket = Bucket { address: listener.local_addr().expect("an address"), state: Arc::default() };
        let served = bucket.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let bucket = served.clone();
                thread::spawn(move || bucket.serve(stream));
            }
        });
        bucket
    }

    /// What a client's environment has to say to find it.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "nowhere-1".into()),
            ("AWS_ACCESS_KEY_ID", "me".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// Changes an object.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.state().objects.get_mut(name).expect("an object of this name"));
    }

    /// Removes an object.
    pub fn take(&self, name: &str) -> Vec<u8> {
        self.state().objects.remove(name).expect("an object of this name")
    }

    /// Puts one there.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.state().objects.insert(name.to_owned(), bytes);
    }

    /// From now on it refuses everything, or nothing.
    pub fn refuse(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// From now on it dies at the part with this number, or does not.
    pub fn die_at_part(&self, part: Option<u32>) {
        self.state().dies_at_part = part;
    }

    /// What it was asked for until now, method and target.
    pub fn asked(&self) -> Vec<String> {
        self.state().asked.clone()
    }

    /// How many uploads are under way.
    pub fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
        let mut writer = stream;
        while let Some(request) = read(&mut reader) {
            let Some((status, headers, body)) = self.answer(&request) else { return };
            let mut head = format!("HTTP/1.1 {status} x\r\n");
            headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
            head += &format!("content-length: {}\r\n\r\n", body.len());
            let sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body));
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.state();
        let query: Vec<String> = request.query.iter().map(|(key, value)| format!("{key}={value}")).collect();
        state.asked.push(format!("{} {}?{}", request.method, request.path, query.join("&")));
        if state.refuses {
            return Some((503, vec![], b"<Error><Code>SlowDown</Code></Error>".to_vec()));
        }
        let path = request.path.trim_start_matches('/');
        let name = path.strip_prefix(NAME).expect("our bucket").trim_start_matches('/').to_owned();
        let (upload, part) = (request.query.get("uploadId"), request.query.get("partNumber"));
        let etag = |bytes: &[u8]| {
            ("etag", format!("\"{}-{}\"", bytes.len(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>()))
        };
        match (request.method.as_str(), upload, part) {
            ("GET", ..) if request.query.contains_key("list-type") => {
                Some((200, vec![], state.list(request)))
            }
            ("POST", None, _) if request.query.contains_key("uploads") => {
                state.begun += 1;
                let id = format!("upload-{}", state.begun);
                let body = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                );
                state.uploads.insert(id, (name, BTreeMap::new()));
                Some((200, vec![], body.into_bytes()))
            }
            ("PUT", Some(upload), Some(part)) => {
                let number: u32 = part.parse().expect("a number");
                if state.dies_at_part.is_some_and(|dies| number >= dies) {
                    return None;
                }
                let parts = &mut state.uploads.get_mut(upload)?.1;
                parts.insert(number, request.body.clone());
                Some((200, vec![etag(&request.body)], vec![]))
            }
            ("POST", Some(upload), _) => {
                let (name, parts) = state.uploads.remove(upload)?;
                let bytes: Vec<u8> = parts.into_values().flatten().collect();
                let answer = format!(
                    "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
                    etag(&bytes).1
                );
                state.objects.insert(name, bytes);
                Some((200, vec![], answer.into_bytes()))
            }
            ("DELETE", Some(upload), _) => {
                state.uploads.remove(upload);
                Some((204, vec![], vec![]))
            }
            ("PUT", ..) => {
                state.objects.insert(name, request.body.clone());
                Some((200, vec![etag(&request.body)], vec![]))
            }
            ("DELETE", ..) => {
                state.objects.remove(&name);
                Some((204, vec![], vec![]))
            }
            ("GET", ..) => {
                let Some(bytes) = state.objects.get(&name) else {
                    return Some((404, vec![], b"<Error><Code>NoSuchKey</Code></Error>".to_vec()));
                };
                let dated = ("last-modified", "Sun, 22 Nov 2026 12:00:00 GMT".to_owned());
                let headers = vec![etag(bytes), dated];
                match request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")) {
                    None => Some((200, headers, bytes.clone())),
                    Some(range) => {
                        let (from, to) = range.split_once('-').expect("a range");
                        let from: usize = from.parse().expect("a number");
                        let to = to.parse::<usize>().map_or(bytes.len(), |to| (to + 1).min(bytes.len()));
                        let place = ("content-range", format!("bytes {from}-{}/{}", to - 1, bytes.len()));
                        Some((206, headers.into_iter().chain([place]).collect(), bytes[from..to].to_vec()))
                    }
                }
            }
            (method, ..) => panic!("{method} is not spoken here"),
        }
    }
}

impl State {
    fn list(&self, request: &Request) -> Vec<u8> {
        let of = |key: &str| request.query.get(key).cloned().unwrap_or_default();
        let (prefix, delimiter) = (of("prefix"), of("delimiter"));
        let (mut contents, mut places) = (String::new(), std::collections::BTreeSet::new());
        for (name, bytes) in self.objects.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let rest = &name[prefix.len()..];
            match rest.find(&delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => _ = places.insert(format!("{prefix}{}", &rest[..=at])),
                None => {
                    contents += &format!(
                        "<Contents><Key>{name}</Key><Size>{}</Size><LastModified>2026-11-22T12:00:00.000Z</LastModified>\
                         <ETag>\"x\"</ETag></Contents>",
                        bytes.len()
                    );
                }
            }
        }
        let places: String = places
            .iter()
            .map(|place| format!("<CommonPrefixes><Prefix>{place}</Prefix></CommonPrefixes>"))
            .collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{places}</ListBucketResult>")
            .into_bytes()
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let len = headers.get("content-length").map_or(0, |len| len.parse().expect("a length"));
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query =
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (plain(k), plain(v)));
    Some(Request { method, path: plain(path), query: query.collect(), headers, body })
}

/// Without percent signs.
fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("digits"));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).expect("text")
}
