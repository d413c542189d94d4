//! The JSON that the header of a request may have. Other JSON is left to the code of all other requests.

use std::borrow::Cow;

/// A JSON text of which only what the header of a send may have is read.
pub struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a str) -> Self {
        Json { text, at: 0 }
    }

    pub fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn eat(&mut self, wanted: u8) -> Option<()> {
        if self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    pub fn string(&mut self) -> Option<Cow<'a, str>> {
        self.eat(b'"')?;
        let (begin, bytes) = (self.at, self.text.as_bytes());
        loop {
            match *bytes.get(self.at)? {
                b'"' => break,
                b'\\' => return self.escaped(begin).map(Cow::Owned),
                0..=0x1F => return None,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(Cow::Borrowed(&self.text[begin..self.at - 1]))
    }

    fn escaped(&mut self, begin: usize) -> Option<String> {
        let bytes = self.text.as_bytes();
        let mut made = String::with_capacity(256);
        let mut from = begin;
        loop {
            match *bytes.get(self.at)? {
                b'"' => break,
                0..=0x1F => return None,
                b'\\' => {
                    made.push_str(&self.text[from..self.at]);
                    let kind = *bytes.get(self.at + 1)?;
                    self.at += 2;
                    made.push(match kind {
                        b'"' | b'\\' | b'/' => kind as char,
                        b'b' => '\x08',
                        b'f' => '\x0C',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        b'u' => self.unit()?,
                        _ => return None,
                    });
                    from = self.at;
                }
                _ => self.at += 1,
            }
        }
        made.push_str(&self.text[from..self.at]);
        self.at += 1;
        Some(made)
    }

    /// The character of one or two `\uXXXX`, of which the first two characters are read.
    fn unit(&mut self) -> Option<char> {
        let first = self.four()?;
        if !(0xD800..0xDC00).contains(&first) {
            return char::from_u32(first);
        }
        if self.text.as_bytes().get(self.at..self.at + 2)? != b"\\u" {
            return None;
        }
        self.at += 2;
        let second = self.four()?;
        if !(0xDC00..0xE000).contains(&second) {
            return None;
        }
        char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00))
    }

    fn four(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |value, digit| Some(value << 4 | (*digit as char).to_digit(16)?))
    }

    /// A whole number of at most 18 digits.
    pub fn int(&mut self) -> Option<i64> {
        let negative = self.peek()? == b'-';
        self.at += usize::from(negative);
        let digits = &self.text.as_bytes()[self.at..];
        let count = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
        if count == 0 || count > 18 || (count > 1 && digits[0] == b'0') {
            return None;
        }
        self.at += count;
        let value = digits[..count].iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
        Some(if negative { -value } else { value })
    }

    /// Any value but a number with a fraction, an object or a list.
    pub fn scalar(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'n' => self.word("null"),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            _ => self.int().map(|_| ()),
        }
    }

    pub fn word(&mut self, word: &str) -> Option<()> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return None;
        }
        self.at += word.len();
        Some(())
    }

    /// Calls `each` behind the colon of each name of an object.
    pub fn object(&mut self, mut each: impl FnMut(&mut Self, Cow<'a, str>) -> Option<()>) -> Option<()> {
        self.eat(b'{')?;
        if self.peek()? == b'}' {
            return self.eat(b'}');
        }
        loop {
            let name = self.string()?;
            self.eat(b':')?;
            each(self, name)?;
            if self.peek()? == b'}' {
                return self.eat(b'}');
            }
            self.eat(b',')?;
        }
    }
}
