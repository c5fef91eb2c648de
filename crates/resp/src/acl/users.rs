//! Users: who may log in with what, and what each may do; the lines of an ACL file.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_commands::rights::{Rights, RuleError, Selector, shown};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The user that a connection begins as.
pub const DEFAULT: &[u8] = b"default";

/// A user. It does not change: a change makes a new one with the same [`User::id`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: Box<[u8]>,
    /// Tells it from others of its name, before and after.
    id: u64,
    is_on: bool,
    /// Any password does.
    no_pass: bool,
    passwords: Vec<Password>,
    rights: Rights,
    /// The rights as a script carries them; none: all of them.
    carried: Option<Box<[u8]>>,
}

/// The SHA-256 of a password. It is compared in constant time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Password([u8; 32]);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a password")
    }
}

impl Password {
    fn of(text: &[u8]) -> Password {
        Password(Sha256::digest(text).into())
    }

    /// Reads 64 hexadecimal digits in lower case.
    fn parse(text: &[u8]) -> Option<Password> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        let (pairs, rest) = text.as_chunks::<2>();
        if pairs.len() != hash.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Password(hash))
    }

    fn describe(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The reason why a modifier of ACL SETUSER, or a word of an ACL file, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifierError {
    /// As a rule.
    Rule(RuleError),
    /// The password is empty.
    EmptyPassword,
    /// A hash is not 64 hexadecimal digits.
    Hash,
    /// The user does not have the password that is to go.
    NoSuchPassword,
}

impl ModifierError {
    /// What is wrong with it. The texts are Redis's, but for the empty password, which Redis takes.
    pub const fn text(self) -> &'static str {
        match self {
            ModifierError::Rule(rule) => rule.text(),
            ModifierError::EmptyPassword => {
                "An empty password is none: choose one, or say nopass if everybody may come in as this user"
            }
            ModifierError::Hash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            ModifierError::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
        }
    }
}

/// The reason why modifiers are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModifiersError {
    /// One of them is wrong.
    One(Box<[u8]>, ModifierError),
    /// A selector has no end.
    Unmatched(Box<[u8]>),
}

impl ModifiersError {
    /// The error of ACL SETUSER.
    pub fn reply(&self) -> Vec<u8> {
        match self {
            ModifiersError::One(modifier, error) => {
                // A secret has no place in an error.
                let modifier: &[u8] = match &**modifier {
                    [sign @ (b'>' | b'<'), ..] => std::slice::from_ref(sign),
                    other => other,
                };
                [b"ERR Error in ACL SETUSER modifier '", modifier, b"': ", error.text().as_bytes()].concat()
            }
            ModifiersError::Unmatched(start) => {
                [&b"ERR Unmatched parenthesis in acl selector starting at '"[..], start, b"'."].concat()
            }
        }
    }
}

impl User {
    /// The user that Redis begins with: everybody is let in, and may do everything.
    pub fn open(name: &[u8], id: u64) -> User {
        let rights = Rights::everything();
        User {
            name: name.into(),
            id,
            is_on: true,
            no_pass: true,
            passwords: Vec::new(),
            rights,
            carried: None,
        }
    }

    /// The user that ACL SETUSER makes of a name alone: it cannot log in and may do nothing.
    pub fn closed(name: &[u8], id: u64) -> User {
        let mut user =
            User { is_on: false, no_pass: false, rights: Rights::default(), ..User::open(name, id) };
        user.note_rights();
        user
    }

    /// The user's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Tells it from others of its name, before and after.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Tells whether the user may log in at all.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Tells whether any password does.
    pub fn has_no_pass(&self) -> bool {
        self.no_pass
    }

    /// Tells whether a connection has the user without logging in.
    pub fn is_open(&self) -> bool {
        self.is_on && self.no_pass
    }

    /// The user's rights.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Tells whether nothing is refused to the user.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.carried.is_none()
    }

    /// The user's rights as a script carries them; none: all of them.
    #[inline]
    pub fn carried(&self) -> Option<&[u8]> {
        self.carried.as_deref()
    }

    /// The user's passwords: the SHA-256 of each in hexadecimal digits.
    pub fn hashes(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(Password::describe)
    }

    /// Tells whether the user may log in with a password, in a time that does not depend on which is wrong.
    pub fn accepts(&self, password: &[u8]) -> bool {
        let given = Password::of(password);
        let mut found = subtle::Choice::from(u8::from(self.no_pass));
        for kept in &self.passwords {
            found |= kept.0.ct_eq(&given.0);
        }
        bool::from(found) && self.is_on
    }

    fn note_rights(&mut self) {
        self.carried = (!self.rights.are_full()).then(|| self.rights.carried().into());
    }

    /// Applies modifiers of ACL SETUSER in order.
    ///
    /// # Errors
    /// The first that is refused; nothing has changed then.
    pub fn modified(&self, modifiers: &[&[u8]]) -> Result<User, ModifiersError> {
        let mut user = self.clone();
        for modifier in merged(modifiers)? {
            let error = |error| ModifiersError::One(modifier.clone().into(), error);
            user.modify(&modifier).map_err(error)?;
        }
        user.note_rights();
        Ok(user)
    }

    fn modify(&mut self, modifier: &[u8]) -> Result<(), ModifierError> {
        match &*modifier.to_ascii_lowercase() {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => {
                self.no_pass = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.no_pass = false;
                self.passwords.clear();
            }
            b"reset" => {
                let id = self.id;
                *self = User::closed(&std::mem::take(&mut self.name), id);
            }
            b"clearselectors" => self.rights.more.clear(),
            // For RESTORE: here every payload is checked.
            b"sanitize-payload" | b"skip-sanitize-payload" => {}
            _ => match modifier {
                [b'>', text @ ..] | [b'<', text @ ..] if text.is_empty() => {
                    return Err(ModifierError::EmptyPassword);
                }
                [b'>', text @ ..] => self.add(Password::of(text)),
                [b'#', hash @ ..] => self.add(Password::parse(hash).ok_or(ModifierError::Hash)?),
                [b'<', text @ ..] => self.remove(Password::of(text))?,
                [b'!', hash @ ..] => self.remove(Password::parse(hash).ok_or(ModifierError::Hash)?)?,
                [b'(', rules @ .., b')'] => {
                    let mut selector = Selector::default();
                    for rule in words(rules) {
                        selector.set(rule).map_err(ModifierError::Rule)?;
                    }
                    self.rights.more.push(selector);
                }
                rule => self.rights.root.set(rule).map_err(ModifierError::Rule)?,
            },
        }
        Ok(())
    }

    fn add(&mut self, password: Password) {
        self.no_pass = false;
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
    }

    fn remove(&mut self, password: Password) -> Result<(), ModifierError> {
        let before = self.passwords.len();
        self.passwords.retain(|have| *have != password);
        if self.passwords.len() < before { Ok(()) } else { Err(ModifierError::NoSuchPassword) }
    }

    /// Appends its line of an ACL file.
    pub fn describe(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"user ");
        out.extend_from_slice(&self.name);
        out.extend_from_slice(if self.is_on { b" on " } else { b" off " });
        if self.no_pass {
            out.extend_from_slice(b"nopass ");
        }
        for hash in self.hashes() {
            out.extend_from_slice(format!("#{hash} ").as_bytes());
        }
        self.rights.describe(out);
    }

    /// Tells whether another user is the same but for its id.
    fn is_like(&self, other: &User) -> bool {
        User { id: other.id, ..self.clone() } == *other
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The modifiers with those of one selector put together: from `(` to `)`.
fn merged(modifiers: &[&[u8]]) -> Result<Vec<Vec<u8>>, ModifiersError> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for modifier in modifiers {
        match &mut open {
            Some(selector) => {
                selector.push(b' ');
                selector.extend_from_slice(modifier);
            }
            None if modifier.first() == Some(&b'(') => open = Some(modifier.to_vec()),
            None => all.push(modifier.to_vec()),
        }
        if open.is_some() && modifier.last() == Some(&b')') {
            all.extend(open.take());
        }
    }
    match open {
        Some(selector) => Err(ModifiersError::Unmatched(selector.into())),
        None => Ok(all),
    }
}

/// Tells whether a user may have this name.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0)
}

/// All users, by name.
#[derive(Clone, Debug)]
pub struct Users {
    users: BTreeMap<Box<[u8]>, Arc<User>>,
    next_id: u64,
}

impl Default for Users {
    /// The default user alone, open to everybody.
    fn default() -> Users {
        let default = Arc::new(User::open(DEFAULT, 0));
        Users { users: BTreeMap::from([(DEFAULT.into(), default)]), next_id: 1 }
    }
}

/// An error in an ACL file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The line.
    pub line: usize,
    /// The error.
    pub text: String,
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for FileError {}

impl Users {
    /// Reads an ACL file: lines `user NAME MODIFIER …`, empty lines, and comments after `#`. The default user is open to
    /// everybody unless the file says what it is.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &[u8]) -> Result<Users, FileError> {
        let mut users = Users::default();
        let mut seen: Vec<&[u8]> = Vec::new();
        for (i, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let wrong = |text: String| FileError { line: i + 1, text };
            let all: Vec<&[u8]> = words(line).collect();
            let (name, modifiers) = match &*all {
                [] => continue,
                [first, ..] if first.starts_with(b"#") => continue,
                [first, name, modifiers @ ..] if *first == b"user" => (*name, modifiers),
                _ => return Err(wrong("a line begins with 'user' and a name".to_owned())),
            };
            if !is_name(name) {
                return Err(wrong("a name has no spaces and no null characters".to_owned()));
            }
            if seen.contains(&name) {
                return Err(wrong(format!("user '{}' is there twice", shown(name))));
            }
            seen.push(name);
            let user = User::closed(name, users.take_id(name)).modified(modifiers).map_err(|error| {
                let text = String::from_utf8_lossy(&error.reply()).into_owned();
                wrong(text.trim_start_matches("ERR ").replace("ACL SETUSER modifier", "modifier"))
            })?;
            users.put(user);
        }
        Ok(users)
    }

    fn take_id(&mut self, name: &[u8]) -> u64 {
        match self.users.get(name) {
            Some(user) => user.id,
            None => {
                self.next_id += 1;
                self.next_id - 1
            }
        }
    }

    fn put(&mut self, user: User) {
        self.users.insert(user.name.clone(), Arc::new(user));
    }

    /// The user with this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// The user that a connection begins as.
    pub fn default_user(&self) -> Arc<User> {
        self.get(DEFAULT).cloned().unwrap_or_else(|| Arc::new(User::closed(DEFAULT, 0)))
    }

    /// All users in order of name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Makes or changes a user.
    ///
    /// # Errors
    /// A modifier is refused; nothing has changed then.
    pub fn set(&mut self, name: &[u8], modifiers: &[&[u8]]) -> Result<(), ModifiersError> {
        let user = match self.users.get(name) {
            Some(user) => user.modified(modifiers)?,
            None => User::closed(name, self.next_id).modified(modifiers)?,
        };
        self.take_id(name);
        self.put(user);
        Ok(())
    }

    /// Removes a user; whether it was there. The default user stays.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        name != DEFAULT && self.users.remove(name).is_some()
    }

    /// Takes the place of other users. Who is as before is the same user; of the others the connections are to be closed,
    /// but for those of the default user.
    pub fn replace(&mut self, mut other: Users) {
        let mut next_id = self.next_id.max(other.next_id);
        for user in other.users.values_mut() {
            let id = match self.users.get(&user.name) {
                Some(old) if old.is_like(user) || &*user.name == DEFAULT => old.id,
                _ => {
                    next_id += 1;
                    next_id - 1
                }
            };
            *user = Arc::new(User { id, ..(**user).clone() });
        }
        *self = Users { users: other.users, next_id };
    }

    /// The text of an ACL file with these users.
    pub fn file(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for user in self.iter() {
            user.describe(&mut text);
            text.push(b'\n');
        }
        text
    }

    /// Tells whether the rights of any user are restricted.
    pub fn are_restricted(&self) -> bool {
        self.iter().any(|user| !user.is_unrestricted())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(modifiers: &str) -> Result<User, ModifiersError> {
        let words: Vec<&[u8]> = modifiers.split(' ').map(str::as_bytes).collect();
        User::closed(b"u", 7).modified(&words)
    }

    fn line(user: &User) -> String {
        let mut out = Vec::new();
        user.describe(&mut out);
        String::from_utf8(out).unwrap()
    }

    const HASH_OF_P: &str = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";

    #[test]
    fn a_user_is_shown_as_redis_shows_it() {
        let shown = |modifiers: &str| line(&user(modifiers).unwrap());
        assert_eq!(shown("off"), "user u off resetchannels -@all");
        assert_eq!(
            shown("on >p ~a* %R~b* %W~c &ch +get (+set ~z)"),
            format!(
                "user u on #{HASH_OF_P} ~a* %R~b* %W~c resetchannels &ch -@all +get (~z resetchannels -@all +set)"
            )
        );
        assert_eq!(
            shown(&format!("on #{HASH_OF_P} allkeys >p <p nopass")),
            "user u on nopass ~* resetchannels -@all"
        );
        assert_eq!(shown("on >p allkeys +@all reset"), "user u off resetchannels -@all");
        assert_eq!(
            shown("( +get ~a ) ()"),
            "user u off resetchannels -@all (~a resetchannels -@all +get) (resetchannels -@all)"
        );
        assert_eq!(line(&User::open(b"default", 0)), "user default on nopass ~* &* +@all");
    }

    #[test]
    fn what_is_refused_says_why_and_shows_no_secret() {
        let reply = |modifiers: &str| String::from_utf8(user(modifiers).unwrap_err().reply()).unwrap();
        assert_eq!(reply("foo"), "ERR Error in ACL SETUSER modifier 'foo': Syntax error");
        assert_eq!(
            reply("<secret"),
            "ERR Error in ACL SETUSER modifier '<': The password you are trying to remove from the user does not exist"
        );
        assert!(reply(">").starts_with("ERR Error in ACL SETUSER modifier '>': An empty password is none"));
        assert!(reply("#zz").contains("must be exactly 64 characters"));
        assert!(reply(&format!("#{}", HASH_OF_P.to_uppercase())).contains("must be exactly 64 characters"));
        assert_eq!(reply("(+get"), "ERR Unmatched parenthesis in acl selector starting at '(+get'.");
        assert_eq!(reply("(~a %X~b)"), "ERR Error in ACL SETUSER modifier '(~a %X~b)': Syntax error");
    }

    #[test]
    fn passwords_are_compared_whole_and_an_empty_one_is_none() {
        let it = user("on >secret >other").unwrap();
        assert!(it.accepts(b"secret") && it.accepts(b"other"));
        for wrong in [&b""[..], b"s", b"secrex", b"secret1", b"secretsecret"] {
            assert!(!it.accepts(wrong));
        }
        assert!(!user("off >secret").unwrap().accepts(b"secret"));
        assert!(user("on nopass").unwrap().accepts(b"anything"));
        assert!(!user("on nopass resetpass").unwrap().accepts(b""));
    }

    #[test]
    fn a_file_is_read_and_what_is_wrong_with_it_is_said() {
        let text = "# users\n\nuser default off\r\nuser a on >p +@read ~*\n  user b on nopass -@all\n";
        let users = Users::parse(text.as_bytes()).unwrap();
        assert_eq!(users.iter().len(), 3);
        assert!(!users.default_user().is_open());
        let again = Users::parse(&users.file()).unwrap();
        assert_eq!(again.file(), users.file());
        assert!(Users::parse(b"").unwrap().default_user().is_open());
        for (text, line, word) in [
            ("usr a on", 1, "begins with 'user'"),
            ("\nuser", 2, "begins with 'user'"),
            ("user a +nope", 1, "Unknown command or category"),
            ("user a on\nuser a off", 2, "twice"),
            ("user a (+get", 1, "Unmatched parenthesis"),
            ("user a >", 1, "empty password"),
        ] {
            let error = Users::parse(text.as_bytes()).unwrap_err();
            assert!(error.line == line && error.text.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_reload_keeps_who_is_the_same() {
        let mut users = Users::parse(b"user a on >p\nuser b on >p\nuser c on").unwrap();
        let id = |users: &Users, name: &[u8]| users.get(name).map(|user| user.id());
        let before = users.clone();
        users.replace(Users::parse(b"user a on >p\nuser b on >q\nuser default off").unwrap());
        assert_eq!(id(&users, b"a"), id(&before, b"a"));
        assert_ne!(id(&users, b"b"), id(&before, b"b"));
        assert_eq!(id(&users, b"c"), None);
        assert_eq!(id(&users, DEFAULT), id(&before, DEFAULT));
        assert!(!users.remove(DEFAULT) && users.remove(b"a") && !users.remove(b"a"));
    }

    proptest! {
        /// A line of a file means what it says.
        #[test]
        fn printed_and_parsed_a_user_is_the_same(
            modifiers in prop::collection::vec(prop_oneof![
                proptest::sample::select(vec![
                    "on", "off", "nopass", "resetpass", "reset", "allkeys", "resetkeys", "allchannels", "+@all", "-@all",
                    "+@read", "-@dangerous", "+config|get", "-config", "+get", "-set", "+select|1", "clearselectors",
                ]).prop_map(str::to_owned),
                ">[a-z]{1,3}", "~[a-z*]{0,3}", "%[RW]~[a-z]{1,2}", "&[a-z]{1,2}", "\\([+]get ~[a-z]{1,2}\\)",
            ], 0..15)
        ) {
            let mut it = User::closed(b"u", 7);
            for modifier in &modifiers {
                // A pattern after all keys is refused.
                if let Ok(next) = it.modified(&[modifier.as_bytes()]) {
                    it = next;
                }
            }
            let users = Users::parse(line(&it).as_bytes()).unwrap();
            prop_assert!(users.get(b"u").unwrap().is_like(&it), "{}", line(&it));
        }
    }
}
