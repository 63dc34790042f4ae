// Package credential reads the credentials that a session's credentials_uri names.
//
//   - file:///run/secrets/edge.json is a file, watched while the bridge runs: a JSON
//     object with the text fields username, password, ca, cert and key (PEM; ca may be
//     a list), each optional, or one line user:password.
//   - env://PREFIX is the variables PREFIX_USERNAME, PREFIX_PASSWORD, PREFIX_CA,
//     PREFIX_CERT and PREFIX_KEY, read once: the environment of a process that runs
//     does not change.
//
// What is missing, empty or cannot be read is an error, never an anonymous login. No
// error and no log line holds a part of a credential.
package credential
