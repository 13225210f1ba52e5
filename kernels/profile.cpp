#include "kernels/profile.hpp"
