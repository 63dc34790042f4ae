package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/gobridge/gobridge"
)

var (
	errNoCertificate  = errors.New("holds no certificate in PEM form")
	errHalfCredential = errors.New("cert and key of the credential belong together: one of them is missing")
	errHalfPair       = errors.New("tls.cert_file and tls.key_file belong together: one of them is missing")
)

// buildTLS returns the configuration of a TLS client from the files that the settings
// name and, where they name none, from the credential. The error holds every fault,
// each with the option and the file, and no part of a key.
func buildTLS(s *TLSSettings, cred gobridge.Credential) (*tls.Config, error) {
	cfg := &tls.Config{
		ServerName:         s.ServerName,
		NextProtos:         s.ALPN,
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: s.InsecureSkipVerify,
		ClientSessionCache: tls.NewLRUClientSessionCache(0),
	}
	var faults []error
	switch s.MinVersion {
	case "", "1.2":
	case "1.3":
		cfg.MinVersion = tls.VersionTLS13
	default:
		faults = append(faults, fmt.Errorf("tls.min_version %q: write 1.2 or 1.3", s.MinVersion))
	}
	var err error
	if cfg.RootCAs, err = authorities(s, cred.CA); err != nil {
		faults = append(faults, err)
	}
	if cfg.Certificates, err = clientCertificate(s, cred); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return cfg, nil
}

// authorities are those to trust, nil for those of the system.
func authorities(s *TLSSettings, text string) (*x509.CertPool, error) {
	option, from, data := "ca of the credential", "it", []byte(text)
	switch {
	case s.CACertFile != "":
		option, from = "tls.ca_cert_file", s.CACertFile
		var err error
		if data, err = os.ReadFile(s.CACertFile); err != nil {
			return nil, fmt.Errorf("%s: %w", option, err)
		}
	case text == "":
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %s %w", option, from, errNoCertificate)
	}
	return pool, nil
}

// clientCertificate is what the client shows, none when there is none.
func clientCertificate(s *TLSSettings, cred gobridge.Credential) ([]tls.Certificate, error) {
	var pair tls.Certificate
	var err error
	switch {
	case s.CertFile != "" && s.KeyFile != "":
		pair, err = loadPair(s.CertFile, s.KeyFile)
	case s.CertFile != "" || s.KeyFile != "":
		err = errHalfPair
	case cred.Cert != "" && cred.Key.IsSet():
		if pair, err = tls.X509KeyPair([]byte(cred.Cert), []byte(cred.Key.Reveal())); err != nil {
			err = fmt.Errorf("cert and key of the credential: %w", err)
		}
	case cred.Cert != "" || cred.Key.IsSet():
		err = errHalfCredential
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{pair}, nil
}

// loadPair reads a client certificate and its key.
func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		err = fmt.Errorf("tls.cert_file: %w", err)
	}
	key, keyErr := os.ReadFile(keyFile)
	if keyErr != nil {
		keyErr = fmt.Errorf("tls.key_file: %w", keyErr)
	}
	if err := errors.Join(err, keyErr); err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.cert_file %s with tls.key_file %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}
