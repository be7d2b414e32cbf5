//! Names in listings that cannot be file names. They are removed from the response before it is parsed, as the parser
//! would fail on the whole listing.

use std::borrow::Cow;
use std::sync::Arc;

use object_store::client::{HttpError, HttpResponse};
use parking_lot::Mutex;

/// The most bytes of a file name.
const LONGEST: usize = 255;

/// The names that a listing leaves out. It travels with the request.
#[derive(Clone, Debug, Default)]
pub(super) struct LeftOut {
    /// The prefix of all names in the listing.
    prefix: String,
    found: Arc<Mutex<Vec<(String, String)>>>,
}

impl LeftOut {
    /// Begins a listing.
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            found: Arc::default(),
        }
    }

    /// Returns the names that were left out, with the reasons.
    pub(super) fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.found.lock())
    }

    /// Removes names that cannot be shown from a response.
    pub(super) async fn sifted(&self, answer: HttpResponse) -> Result<HttpResponse, HttpError> {
        let (mut head, body) = answer.into_parts();
        let body = body.bytes().await?;
        head.headers.remove(reqwest::header::CONTENT_LENGTH);
        let mut found = self.found.lock();
        let text = String::from_utf8_lossy(&body);
        let sifted = sift(&text, &self.prefix, &mut found);
        Ok(HttpResponse::from_parts(head, sifted.into()))
    }
}

/// The XML elements that stand for one name each, and the element in them that holds the name: first S3 and Google,
/// then Azure.
const ENTRIES: [(&str, &str); 4] = [
    ("Contents", "Key"),
    ("CommonPrefixes", "Prefix"),
    ("BlobPrefix", "Name"),
    ("Blob", "Name"),
];

/// Removes the entries whose names cannot be shown. Text contains no `<`, so elements are found by their tags.
fn sift(listing: &str, prefix: &str, left_out: &mut Vec<(String, String)>) -> String {
    let mut kept = String::with_capacity(listing.len());
    let mut rest = listing;
    // Elements without another end tag, so that the search for one does not repeat.
    let mut endless = [false; ENTRIES.len()];
    while let Some(at) = rest.find('<') {
        let from = &rest[at..];
        let kinds = ENTRIES.iter().zip(&mut endless);
        let entry = kinds
            .filter(|(_, endless)| !**endless)
            .find_map(|((entry, name), endless)| {
                let inner = from
                    .strip_prefix('<')?
                    .strip_prefix(entry)?
                    .strip_prefix('>')?;
                let end = inner.find(&format!("</{entry}>"));
                *endless = end.is_none();
                let end = end?;
                let length = entry.len() * 2 + "<></>".len() + end;
                Some((element(&inner[..end], name), length))
            });
        let Some((name, length)) = entry else {
            kept.push_str(&rest[..=at]);
            rest = &rest[at + 1..];
            continue;
        };
        kept.push_str(&rest[..at]);
        // An entry without a name is left for the parser to refuse.
        let judged = name.and_then(|name| Some((refused(name.strip_prefix(prefix))?, name)));
        match judged {
            None => kept.push_str(&from[..length]),
            Some(("", _)) => {}
            Some((why, name)) => left_out.push((name.into_owned(), why.to_owned())),
        }
        rest = &from[length..];
    }
    kept.push_str(rest);
    kept
}

/// Returns the text of an element.
fn element<'a>(within: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let from = within.split_once(&format!("<{name}"))?.1;
    let (attributes, from) = from.split_once('>')?;
    let (text, _) = from.split_once('<')?;
    // Azure encodes names that XML cannot represent.
    if attributes.contains("true") {
        let bytes = percent_encoding::percent_decode_str(text);
        return Some(bytes.decode_utf8_lossy());
    }
    if !text.contains('&') {
        return Some(text.into());
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('&') {
        plain.push_str(before);
        let (entity, after) = from.split_once(';')?;
        let number = entity.strip_prefix('#');
        plain.push(match (entity, number) {
            ("amp", _) => '&',
            ("lt", _) => '<',
            ("gt", _) => '>',
            ("quot", _) => '"',
            ("apos", _) => '\'',
            (_, Some(number)) => {
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16).ok(),
                    None => number.parse().ok(),
                };
                code.and_then(char::from_u32).unwrap_or('\u{fffd}')
            }
            _ => '\u{fffd}',
        });
        rest = after;
    }
    plain.push_str(rest);
    Some(plain.into())
}

/// Returns the reason why a name below a prefix is not a file name; `None` if it is one. The name of a prefix ends in
/// `/`. The reason is empty for the marker object of a directory, which needs no note.
fn refused(below: Option<&str>) -> Option<&'static str> {
    let Some(below) = below else {
        return Some("it does not begin as what was asked for");
    };
    if below.is_empty() {
        return Some("");
    }
    let name = below.strip_suffix('/').unwrap_or(below);
    match name {
        "" => Some("two / in a row: a directory without a name"),
        "." | ".." => Some("no name of a file: it means the directory, or the one above"),
        _ if name.contains('/') => Some("a / in a name"),
        _ if name.chars().any(char::is_control) => Some("a control character in the name"),
        _ if name.len() > LONGEST => Some("a name of more than 255 bytes"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_cut_out() {
        let long = "x".repeat(256);
        let object = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let prefix = |key: &str| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>");
        let good = [
            object("d/a b.h5"),
            prefix("d/e/"),
            object("d/&lt;1&#x33;&amp;.h5"),
        ];
        let bad = [
            object("d/"),
            prefix("d//"),
            object("d/.."),
            object("d/a&#xA;b"),
            object(&format!("d/{long}")),
            object("other"),
        ];
        let whole = |entries: &[String]| {
            let entries = entries.concat();
            format!("<?xml?><R><Prefix>d/</Prefix><Name>n</Name>{entries}<Next>x</Next></R>")
        };
        let mut left_out = Vec::new();
        let all = [&good[..], &bad[..]].concat();
        assert_eq!(sift(&whole(&all), "d/", &mut left_out), whole(&good));
        let names: Vec<_> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        let long = format!("d/{long}");
        assert_eq!(names, ["d//", "d/..", "d/a\nb", &long, "other"]);
    }

    #[test]
    fn azures_listings_are_sifted_too() {
        let listing = "<Blobs><Blob><Name>ok</Name><P/></Blob><Blob><Name Encoded=\"true\">a%01</Name></Blob>\
                       <BlobPrefix><Name>./</Name></BlobPrefix><BlobPrefix><Name>d/</Name></BlobPrefix></Blobs>";
        let mut left_out = Vec::new();
        let kept = "<Blobs><Blob><Name>ok</Name><P/></Blob><BlobPrefix><Name>d/</Name></BlobPrefix></Blobs>";
        assert_eq!(sift(listing, "", &mut left_out), kept);
        assert_eq!(left_out.len(), 2);
        // A listing that is cut within an entry stays as it is.
        for end in 0..listing.len() {
            let cut = sift(&listing[..end], "", &mut Vec::new());
            assert!(cut.len() <= end);
        }
        // The time is linear in the number of start tags.
        let begun = "<Contents><Blob>".repeat(1 << 20);
        assert_eq!(sift(&begun, "", &mut Vec::new()), begun);
        let ended = format!("{begun}</Blob></Contents>");
        assert_eq!(sift(&ended, "", &mut Vec::new()), ended);
    }
}
