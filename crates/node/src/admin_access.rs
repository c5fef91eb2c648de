//! Who may look at the admin server: those whom the front door lets in.
//!
//! A request names a user and its password (HTTP basic authentication, which curl, browsers and Prometheus have). One
//! that names nobody is the default user's, if that needs no password. The user needs the right to the command INFO, which
//! tells much the same. `/healthz` and `/readyz` are open: what asks them has no password, and they tell one word.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use ordain_commands::lookup;
use ordain_model::Micros;
use ordain_resp::{Access, Attempt, DEFAULT, User};

use crate::admin::Peer;

/// What everybody may ask.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Puts the guard before a router.
pub(crate) fn guarded(router: Router, access: Arc<Access>) -> Router {
    router.layer(middleware::from_fn_with_state(access, guard))
}

async fn guard(
    State(access): State<Arc<Access>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let user = match credentials(request.headers()) {
        Some((name, password)) => {
            let peer = peer.to_string();
            match access.attempt(&peer, now()) {
                Attempt::Now => {}
                Attempt::After(wait) => tokio::time::sleep(Duration::from_micros(wait.0)).await,
                Attempt::Refused => return StatusCode::TOO_MANY_REQUESTS.into_response(),
            }
            let user = access.log_in(&name, &password, &peer, now());
            if user.is_none() {
                tracing::warn!(peer, "a login at the admin server failed");
            }
            user
        }
        None => access.users(|users| users.get(DEFAULT).filter(|user| user.is_open()).cloned()),
    };
    match user {
        Some(user) if may_look(&user) => next.run(request).await,
        Some(_) => (
            StatusCode::FORBIDDEN,
            "this user has no permissions to run the 'info' command, so none to look here\n",
        )
            .into_response(),
        None => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Basic realm=\"ordain\", charset=\"UTF-8\"")],
            "a user and a password of this node are needed\n",
        )
            .into_response(),
    }
}

fn may_look(user: &User) -> bool {
    let words: [&[u8]; 1] = [b"info"];
    lookup(words[0]).is_some_and(|info| user.rights().check(info, &words).is_ok())
}

fn now() -> Micros {
    Micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64)
}

/// The user and the password that a request names (RFC 7617). An empty user is the default one.
fn credentials(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let both = decode(encoded)?;
    let colon = both.iter().position(|byte| *byte == b':')?;
    let (name, password) = (&both[..colon], &both[colon + 1..]);
    let name = if name.is_empty() { DEFAULT } else { name };
    Some((name.to_vec(), password.to_vec()))
}

/// Decodes base64 (RFC 4648, 4); `None` if it is none.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let unpadded = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(unpadded.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for remote_result in unpadded {
        let value = match remote_result {
            b'A'..=b'Z' => remote_result - b'A',
            b'a'..=b'z' => remote_result - b'a' + 26,
            b'0'..=b'9' => remote_result - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // What is left over of a remote result is zero.
    (bits == 0 && count < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_as_the_rfc_has_it() {
        for (text, bytes) in [
            ("", Some(&b""[..])),
            ("Zg==", Some(b"f")),
            ("Zm8=", Some(b"fo")),
            ("Zm9v", Some(b"foo")),
            ("Zm9vYmFy", Some(b"foobar")),
            ("//79", Some(b"\xff\xfe\xfd")),
            ("Z", None),
            ("Zh==", None),
            ("Zm9v!", None),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), bytes, "{text}");
        }
    }

    #[test]
    fn credentials_are_read_from_the_header() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            credentials(&headers)
        };
        assert_eq!(of("Basic dTpwOnE="), Some((b"u".to_vec(), b"p:q".to_vec())));
        assert_eq!(of("basic OnA="), Some((b"default".to_vec(), b"p".to_vec())));
        assert_eq!(of("Bearer dTpw"), None);
        assert_eq!(of("Basic dQ=="), None);
        assert_eq!(credentials(&HeaderMap::new()), None);
    }

    #[test]
    fn who_may_not_see_info_may_not_look() {
        let user = |rules: &str| {
            let words: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
            User::closed(b"u", 1).modified(&words).unwrap()
        };
        assert!(may_look(&user("on nopass +info")));
        assert!(!may_look(&user("on nopass +@read")));
    }
}
